"""The configuration file of a broker: its values, its defaults, and errors that name line and key."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from godwit.broker.access import Access
from godwit.broker.settings import Settings
from godwit.errors import ConfigurationError
from godwit.limits import KIB, MIB
from godwit.mqtt.connection import MqttSettings
from godwit.server.configuration import ArchiveSection, BridgeSection, Configuration, MqttSection, load_configuration
from godwit.store.retention import RetentionRule

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "broker.toml"
FILES = {"one.secret": b"0123456789abcdef\n", "empty.secret": b"\n"}


def read_secret(path: str) -> bytes:
    if path not in FILES:
        raise FileNotFoundError(2, "No such file or directory", path)
    return FILES[path]


def load(text: str) -> Configuration:
    return load_configuration(text, read_secret=read_secret)


def complaint_of(text: str) -> str:
    """Return the error of a configuration, without the line."""
    with pytest.raises(ConfigurationError) as raised:
        load(text)
    return re.sub(r"^line \d+: ", "", str(raised.value))


def test_an_empty_file_is_the_default() -> None:
    assert load("") == Configuration()
    assert load("").listen == ["127.0.0.1:50000"]
    assert load("").settings.access.is_open


def test_the_example_is_whole_and_gives_no_warning() -> None:
    found = load(EXAMPLE.read_text(encoding="utf-8"))
    settings = found.settings
    assert found.listen == ["127.0.0.1:50000", "[::1]:50000"]
    assert found.warnings == []
    assert settings.topics == ("home/room1/temperature", "home/room2/temperature", "home/room3/temperature")
    assert settings.policy_of("plant/line1") == "explicit"
    assert settings.policy_of("home") == "open"
    access = settings.access
    assert access.allows_anonymous
    assert access.may(None, False, "subscribe", "home/+/temperature")
    assert not access.may(None, False, "publish", "home/sensor-1/temperature")
    assert access.may("sensor-1", True, "publish", "home/sensor-1/temperature")
    assert not access.may("sensor-1", True, "publish", "home/sensor-2/temperature")
    assert access.may("operator", True, "kick")
    assert access.may("operator", True, "subscribe", "$sys/#")
    assert access.may("operator", True, "subscribe", "$jobs/#")
    assert access.may("operator", True, "submit", "calibrate/thermometer")
    assert not access.may("sensor-1", True, "submit", "calibrate/thermometer")
    assert access.may("sensor-1", True, "work", "calibrate/thermometer")
    assert not access.may(None, False, "work", "calibrate/thermometer")
    assert found.data == Path("godwit-data")
    assert found.retention == (
        RetentionRule("home/#", 365 * 24 * 3600.0, None),
        RetentionRule(None, 30 * 24 * 3600.0, 10 * 1024 * MIB),
    )
    assert found.archive == ArchiveSection(listen="127.0.0.1:50001")
    assert settings.logged == ("home/+/heartbeat",)


def test_the_example_shows_the_defaults_of_all_limits() -> None:
    """The limits in the example are the defaults, and no key is left out."""
    text = EXAMPLE.read_text(encoding="utf-8")
    values = tomllib.loads(text)
    limits = "[limits]\n" + text.partition("[limits]")[2].partition("[log]")[0]
    assert load(limits).settings == Settings()
    assert load("sys_interval_s = 10").settings == Settings()
    with pytest.raises(ConfigurationError) as raised:
        load("[limits]\nzzzzzzzz = 1")
    known = str(raised.value).partition("known here: ")[2].split(", ")
    assert sorted(known) == sorted(values["limits"])
    for table, keys in (
        ("jobs", ["keep_s", "lease_s"]),
        ("topics", ["create", "policy", "rule"]),
        ("access", ["anonymous", "client", "rule"]),
        ("log", ["data", "max_age", "max_bytes", "rule"]),
        ("archive", ["listen"]),  # the others are there as comments: they name files
    ):
        assert sorted(values[table]) == keys


def test_all_keys() -> None:
    found = load(
        """
        listen = ["0.0.0.0:0"]
        sys_interval_s = 0.5
        [topics]
        policy = "publishers"
        create = ["a", "b c/d", "a"]
        [[topics.rule]]
        filter = "x/#"
        policy = "explicit"
        [[topics.rule]]
        filter = "beats/#"
        log = true
        [[topics.rule]]
        filter = "both"
        policy = "open"
        log = true
        [limits]
        clients = 10
        clients_per_host = 5
        message_bytes = 1000
        datagram_bytes = 8972
        client_memory_bytes = 100_000
        messages_per_s = 2.5
        ring_bytes = 1_000_000
        hold_back_s = 0
        topics = 7
        subscriptions_per_client = 3
        sessions = 20
        session_expiry_s = 60
        [jobs]
        lease_s = 2.5
        keep_s = 0
        [access]
        [[access.client]]
        name = "me"
        secret_file = "one.secret"
        [[access.client]]
        name = "you"
        secret = "grünes Haus am See"
        [[access.rule]]
        clients = ["me", "y*"]
        allow = ["publish", "create"]
        topics = ["#"]
        """
    )
    assert found.listen == ["0.0.0.0:0"]
    assert found.warnings == []
    access = found.settings.access
    assert found.settings == Settings(
        topics=("a", "b c/d"),
        default_policy="publishers",
        policies=(("x/#", "explicit"), ("both", "open")),
        logged=("beats/#", "both"),
        sys_interval_s=0.5,
        max_clients=10,
        max_clients_per_host=5,
        max_message_bytes=1000,
        max_datagram_bytes=8972,
        client_window_bytes=100_000,
        messages_per_s=2.5,
        ring_bytes=1_000_000,
        hold_back_s=0,
        max_topics=7,
        max_subscriptions=3,
        max_sessions=20,
        max_session_expiry_s=60,
        lease_s=2.5,
        job_keep_s=0,
        access=access,
    )
    assert access.secret_of("me") == b"0123456789abcdef"
    assert access.secret_of("you") == "grünes Haus am See".encode()
    assert not access.allows_anonymous
    assert access.may("you", True, "create", "a")


def test_zero_means_no_limit_for_some_limits() -> None:
    settings = load("limits.messages_per_s = 0\nlimits.clients_per_host = 0").settings
    assert (settings.messages_per_s, settings.max_clients_per_host) == (None, None)


def test_anonymous_clients_by_default_only_if_none_is_listed() -> None:
    client = '[[access.client]]\nname = "me"\nsecret = "0123456789abcdef"'
    assert load("[access]").settings.access == Access(allows_anonymous=True)
    assert not load(client).settings.access.allows_anonymous
    assert load(f"[access]\nanonymous = true\n{client}").settings.access.allows_anonymous
    assert not load("[access]\nanonymous = false").settings.access.allows_anonymous


DENIAL = """
[[access.client]]
name = "me"
secret = "a long random text"
[[access.rule]]
clients = ["*"]
allow = ["publish"]
topics = ["a/#"]
[[access.rule]]
clients = ["me"]
deny = ["publish"]
topics = ["a/b"]
"""
RULE = '[[access.rule]]\nclients = ["*"]\nallow = ["publish"]\n'


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("listen", "the configuration is not TOML: "),
        ("a = " + "[" * 5000, "the configuration is not TOML: "),
        ("x = " + "9" * 5000, "the configuration is not TOML: "),
        ("listen = []", "listen is empty: give at least one address"),
        ('listen = "localhost"', "listen is text in quotes: it must be a list"),
        ('lisen = ["a"]', "lisen is not a known key; did you mean listen?"),
        ("[limit]", "limit is not a known key; did you mean limits?"),
        ("[limits]\nclient = 5", "limits.client is not a known key; did you mean clients?"),
        ("[limits]\nclients = 0", "limits.clients is 0: it must lie between 1 and "),
        ("[limits]\nclients = 1.5", "limits.clients is a number: it must be a whole number"),
        (
            "[limits]\nmessages_per_s = -1",
            "limits.messages_per_s is -1: it must lie between 0.001 and 4294967296, or 0",
        ),
        ("[limits]\nhold_back_s = nan", "limits.hold_back_s is nan: it must lie between"),
        ("[limits]\nhold_back_s = inf", "limits.hold_back_s is inf: it must lie between"),
        ("sys_interval_s = 0", "sys_interval_s is 0: it must lie between 0.1 and"),
        ('[topics]\npolicy = "publisher"', "topics.policy is 'publisher': did you mean publishers? choose from open, "),
        ("[jobs]\nlease = 1", "jobs.lease is not a known key; did you mean lease_s?"),
        ("[jobs]\nlease_s = 0", "jobs.lease_s is 0: it must lie between 0.1 and 86400"),
        ("[jobs]\nkeep_s = -1", "jobs.keep_s is -1: it must lie between 0 and "),
        ('[jobs]\nkeep_s = "1h"', "jobs.keep_s is text in quotes: it must be a number"),
        ('[topics]\ncreate = ["a/#"]', "topics.create: topic 'a/#' contains '#'"),
        ('[topics]\ncreate = ["$sys/a"]', "topics.create: topic '$sys/a' begins with $"),
        ('[topics]\ncreate = ["a", "b"]\n[limits]\ntopics = 1', "topics.create lists 2 topics, and limits.topics is 1"),
        ('[[topics.rule]]\nfilter = "a#"\npolicy = "open"', "topics.rule number 1: filter 'a#' has '#' inside"),
        ('[[topics.rule]]\nfilter = "a"', "topics.rule number 1 has neither policy nor log: give policy, log or both"),
        ('[[topics.rule]]\nfilter = "a"\nlog = 1', "topics.rule number 1: log is a whole number: it must be true"),
        ('[topics.rule]\nfilter = "a"', "topics.rule is a table: begin each with a line [[topics.rule]]"),
        ("[access]\nanonymus = true", "access.anonymus is not a known key; did you mean anonymous?"),
        ("[access]\nanonymous = 1", "access.anonymous is a whole number: it must be true or false"),
        ('[[access.client]]\nname = "me"', "access.client number 1: give either secret or secret_file"),
        ('[[access.client]]\nname = "me"\nsecret = "a"\nsecret_file = "b"', "access.client number 1: give either"),
        ('[[access.client]]\nsecret = "a"', "access.client number 1: name is missing"),
        ('[[access.client]]\nname = "me"\nsecret = 5', "access.client number 1: secret is a whole number"),
        (
            '[[access.client]]\nname = "me"\nsecrt = "a"',
            "access.client number 1: secrt is not a known key; did you mean",
        ),
        (
            '[[access.client]]\nname = "me"\nsecret_file = "gone"',
            "access.client number 1: secret_file: cannot read 'gone' (No such file or directory): check the path",
        ),
        ('[[access.client]]\nname = "me"\nsecret_file = "empty.secret"', "the secret of client 'me' is 0 bytes long"),
        ('[[access.client]]\nname = "me"\nsecret = "a"\n' * 2, "access.client number 2: name: 'me' is listed twice"),
        (RULE, "access.rule number 1: a rule allows publish on no topic"),
        (RULE + 'topics = ["a/#/b"]', "access.rule number 1: in a rule: filter 'a/#/b' has '#' before its end"),
        (
            '[[access.rule]]\nclients = ["*"]\nallow = ["puplish"]',
            "access.rule number 1: allow is 'puplish': did you mean",
        ),
        ('[[access.rule]]\nallow = ["kick"]', "access.rule number 1: clients is missing"),
        ('[[access.rule]]\nclients = []\nallow = ["kick"]', "access.rule number 1: a rule names no client"),
        ('[[access.rule]]\nclients = ["*"]\nallow = []', "access.rule number 1 has neither allow nor deny: give one"),
    ],
)
def test_what_is_wrong_is_named(text: str, complaint: str) -> None:
    assert complaint_of(text).startswith(complaint)


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        ("[access]", "access has no rules"),
        ("[access]\nanonymous = false", "access lists no client and anonymous is false: no client can connect"),
        ('[[access.client]]\nname = "me"\nsecret = "hunter2"', "the secret of client 'me' has 7 bytes"),
        ('[[access.rule]]\nclients = ["sensor-*"]\nallow = ["kick"]', "access.rule number 1 is for 'sensor-*'"),
        (f"{DENIAL}[access]\nanonymous = true", "access.rule number 2 denies rights that clients without a proved"),
    ],
)
def test_what_is_hardly_meant_is_warned_of(text: str, warning: str) -> None:
    found = load(text).warnings
    assert any(sentence.startswith(warning) for sentence in found)
    assert "hunter2" not in "".join(found)


def test_a_rule_that_denies() -> None:
    found = load(DENIAL)
    assert found.warnings == []
    assert found.settings.access.may("me", True, "publish", "a/c")
    assert not found.settings.access.may("me", True, "publish", "a/b")


@given(st.text(alphabet='abt[]="\n.#{}0 -', max_size=60) | st.text(max_size=60))
def test_any_text_gives_a_configuration_or_one_error(text: str) -> None:
    try:
        load(text)
    except ConfigurationError as error:
        message = str(error)
    else:
        message = "fine"
    assert message


# -- log and archive --------------------------------------------------------------------------------------------------

FOLDER = Path("/etc/godwit")


def log(text: str) -> tuple[Path | None, tuple[RetentionRule, ...]]:
    section = "[log]\n" + text.replace("[[rule]]", "[[log.rule]]")
    found = load_configuration(section, read_secret=read_secret, folder=FOLDER)
    return found.data, found.retention


def archive(text: str) -> ArchiveSection:
    return load_configuration(f"[archive]\n{text}", read_secret=read_secret, folder=FOLDER).archive


def test_nothing_is_deleted_by_default() -> None:
    assert log("") == (None, ())
    assert archive("") == ArchiveSection(is_on=True, listen=None)


def test_paths_are_relative_to_the_folder_of_the_file() -> None:
    assert log('data = "messages"')[0] == FOLDER / "messages"
    assert log('data = "/var/lib/godwit"')[0] == Path("/var/lib/godwit")
    found = archive('listen = "[::1]:7"\ntoken_file = "tokens"\ncertificate = "a.crt"\nkey = "/a.key"')
    assert found == ArchiveSection(
        listen="[::1]:7", token_file=FOLDER / "tokens", certificate=FOLDER / "a.crt", key=Path("/a.key")
    )


@pytest.mark.parametrize(
    ("text", "age_s"),
    [
        ("90", 90),
        ("1.5", 1.5),
        ('"90s"', 90),
        ('"5m"', 300),
        ('"1.5 h"', 5400),
        ('"30d"', 2_592_000),
        ('"2w"', 1_209_600),
    ],
)
def test_ages(text: str, age_s: float) -> None:
    assert log(f"max_age = {text}")[1] == (RetentionRule(None, age_s, None),)


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("2_000_000", 2_000_000),
        ('"2000000B"', 2_000_000),
        ('"1024 KiB"', MIB),
        ('"1.5MiB"', 3 * MIB // 2),
        ('"10GiB"', 10 * 1024 * MIB),
        ('"2TB"', 2 * 10**12),
        ('"2TiB"', 2 * KIB * KIB * MIB),
    ],
)
def test_sizes(text: str, size_bytes: int) -> None:
    rule = log(f"max_bytes = {text}")[1][0]
    assert rule == RetentionRule(None, None, size_bytes)
    assert type(rule.max_bytes) is int


def test_rules_keep_their_order_and_the_one_for_the_whole_log_is_last() -> None:
    text = """
        max_age = "1d"
        [[rule]]
        filter = "a/#"
        max_bytes = "5MB"
        [[rule]]
        filter = "a/b"
    """
    assert log(text)[1] == (
        RetentionRule("a/#", None, 5_000_000),
        RetentionRule("a/b", None, None),
        RetentionRule(None, 86400.0, None),
    )


def test_no_archive() -> None:
    assert archive('listen = "none"') == ArchiveSection(is_on=False)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("max_age = true", "log.max_age is true or false: it must be a number"),
        ('max_age = "30 years"', 'log.max_age is not understood: write it as "30d", "12h" or a number of seconds'),
        ('max_age = "1M"', "log.max_age is not understood"),
        ("max_age = 0", "log.max_age is 0: it must be 1 s at least"),
        ("max_age = nan", "log.max_age is nan: it must be 1 s at least"),
        ('max_bytes = "10gib"', 'log.max_bytes is not understood: write it as "10GiB"'),
        ("max_bytes = 1000", "log.max_bytes is 1000: it must be 1 MiB at least"),
        ('max_bytes = "99999999TB"', "log.max_bytes is 1e+20: leave the key out for no bound"),
        ('data = ""', "log.data is empty: give a path"),
        ("maxage = 1", "log.maxage is not a known key; did you mean max_age?"),
        ('[[rule]]\nfilter = "a#"', "log.rule number 1: filter 'a#' has '#' inside"),
        ("[[rule]]\nmax_age = 5", "log.rule number 1: filter is missing"),
    ],
)
def test_what_is_wrong_in_the_log_s_section_is_named(text: str, complaint: str) -> None:
    assert complaint_of("[log]\n" + text.replace("[[rule]]", "[[log.rule]]")).startswith(complaint)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('certificate = "a"', "archive has only one of certificate and key: give both, or none"),
        ('key = "a"', "archive has only one of certificate and key"),
        ("listen = 5", "archive.listen is a whole number: it must be text in quotes"),
        ('tokens = "a"', "archive.tokens is not a known key; did you mean token_file?"),
    ],
)
def test_what_is_wrong_in_the_archive_s_section_is_named(text: str, complaint: str) -> None:
    assert complaint_of(f"[archive]\n{text}").startswith(complaint)


# -- texts of errors --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[[access.client]]\nsecret = 'a'", "access.client number 1: name is missing: it must be text in quotes"),
        ("[archive]\nlisten = 3", "archive.listen is a whole number: it must be text in quotes"),
        ("[limits]\nclients = 'blue'", "limits.clients is text in quotes: it must be a whole number"),
        ("[limits]\nclients = true", "limits.clients is true or false: it must be a whole number"),
        ("[limits]\nhold_back_s = true", "limits.hold_back_s is true or false: it must be a number"),
        ("[limits]\nclients = 2.5", "limits.clients is a number: it must be a whole number"),
        ("[limits]\nclients = 2024-01-01", "limits.clients is a date or a time: it must be a whole number"),
        ("[access]\nanonymous = 3", "access.anonymous is a whole number: it must be true or false"),
        ("listen = 'blue'", "listen is text in quotes: it must be a list"),
        ("listen = ['blue', 3]", "listen contains a whole number: it must be a list of texts, as in"),
        ("limits = 'blue'", "limits is text in quotes: it must be a table"),
        ("access.client = ['blue']", "access.client is a list: begin each with a line [[access.client]]"),
        ("access.client = 3", "access.client is a whole number: begin each with a line [[access.client]]"),
        (
            "[[access.client]]\nname = 'a'\nsecret = 'hunter2'\n[[access.client]]\nname = 5",
            "access.client number 2: name is a whole number",
        ),
        ("[topics]\npolicy = 'blue'", "topics.policy is 'blue': choose from open, publishers, explicit"),
        ("[limits]\nclients = 'hunter2'", "limits.clients is text in quotes"),
        ("[limits]\nclints = 1", "limits.clints is not a known key; did you mean clients?"),
        ("[jobs]\nzzz = 1", "jobs.zzz is not a known key; known here: lease_s, keep_s"),
        ('"a\\nb" = 1', "'a\\nb' is not a known key"),
        ("[limits]\nhold_back_s = 1" + "0" * 400, "limits.hold_back_s is "),
    ],
)
def test_errors_name_the_key_and_repeat_no_secret(text: str, complaint: str) -> None:
    found = complaint_of(text)
    assert found.startswith(complaint)
    assert "hunter2" not in found


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("listen = []", 1),
        ("# a comment\n\nlisten = 5", 3),
        ("[limits]\n\nclients = 0", 3),
        ("limits.clients = 0", 1),
        ("[limits]\nclient = 0", 2),
        ('[topics]\ncreate = [\n  "a",\n  "b/#",\n]', 2),
        ('[[topics.rule]]\nfilter = "a"\nlog = true\n\n[[topics.rule]]\nfilter = "b"', 5),
        ('[[topics.rule]]\nfilter = "a"\nlog = true\n[[topics.rule]]\nfilter = "b"\nlog = 1', 6),
        ('[[access.client]]\nname = "a"\nsecret = "b"\n[[access.client]]\nname = "a"\nsecret = "b"', 5),
        ('[[access.rule]]\nclients = ["*"]\nallow = ["x"]', 3),
        ('[log]\ndata = """\nclients = 5\n"""\nmax_age = 0', 5),
        ("[access]\nclient = [{ secret = 'a' }]", 2),
        ("[unknown]\na = 1", 1),
    ],
)
def test_errors_name_the_line(text: str, line: int) -> None:
    with pytest.raises(ConfigurationError, match=rf"^line {line}: "):
        load(text)


# -- MQTT -------------------------------------------------------------------------------------------------------------


def test_mqtt_listeners() -> None:
    assert load("").mqtt is None
    found = load('[mqtt]\nlisten = ["127.0.0.1:1883", "ws://h/x"]\nreceive_maximum = 7\nlog_qos_0 = true').mqtt
    assert found == MqttSection(
        listen=("127.0.0.1:1883", "ws://h/x"), settings=MqttSettings(receive_maximum=7, log_qos_0=True)
    )
    origins = load('[mqtt]\nlisten = ["h"]\norigins = ["https://A.example:8443", "null", "*"]').mqtt
    assert origins is not None
    assert origins.settings.origins == ("https://a.example:8443", "null", "*")
    text = '[mqtt]\nlisten = ["tls://h"]\ncertificate = "a.crt"\nkey = "a.key"\nclient_ca = "ca.crt"'
    section = load_configuration(text, read_secret=read_secret, folder=Path("/etc/godwit")).mqtt
    assert section is not None
    assert (section.certificate, section.key) == (Path("/etc/godwit/a.crt"), Path("/etc/godwit/a.key"))
    assert section.client_ca == Path("/etc/godwit/ca.crt")


def test_the_example_shows_the_defaults_of_mqtt() -> None:
    section = load(EXAMPLE.read_text(encoding="utf-8")).mqtt
    assert section == MqttSection(listen=("127.0.0.1:1883",))
    keys = set(tomllib.loads(EXAMPLE.read_text(encoding="utf-8"))["mqtt"])
    assert keys == {"listen", *MqttSettings.__struct_fields__}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "mqtt.listen is missing"),
        ("listen = []", "mqtt.listen is empty"),
        ('listen = ["h"]\nkey = "k"', "mqtt has only one of certificate and key"),
        ('listen = ["tls://h"]', "mqtt.listen has an address with TLS"),
        ('listen = ["h", "MQTTS://h"]', "mqtt.listen has an address with TLS"),
        ('listen = ["h"]\nuser_from_certificate = true', "mqtt.user_from_certificate needs client_ca"),
        ('listen = ["h"]\nresponse_information = "a/#"', "mqtt.response_information is not the beginning of a topic"),
        ('listen = ["h"]\norigins = ["https://a.example/page"]', "mqtt.origins has 'https://a.example/page'"),
        ('listen = ["h"]\norigins = [5]', "mqtt.origins"),
        ('listen = ["h"]\nreceive_maximum = 0', "mqtt.receive_maximum is 0: it must lie between 1 and 65535"),
        ('listen = ["h"]\nspeed = 1', "speed"),
    ],
)
def test_what_is_wrong_in_the_section_of_mqtt_is_named(text: str, complaint: str) -> None:
    assert complaint in complaint_of(f"[mqtt]\n{text}")


# -- bridges ----------------------------------------------------------------------------------------------------------


def test_bridges() -> None:
    found = load(
        """
        [[bridge]]
        name = "site7"
        hub = "hub:50000,other:50000"
        filters = ["plant/#", "plant/#", "+/status"]
        prefix = "north/site7/"
        secret_file = "one.secret"
        hold = true
        [[bridge]]
        name = "all"
        hub = "hub"
        """
    )
    assert found.bridges == (
        BridgeSection(
            name="site7",
            hub="hub:50000,other:50000",
            filters=("plant/#", "+/status"),
            prefix="north/site7/",
            secret=b"0123456789abcdef",
            hold=True,
        ),
        BridgeSection(name="all", hub="hub"),
    )
    assert "0123456789abcdef" not in repr(found)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('hub = "h"', "bridge number 1: name is missing"),
        ('name = "a"', "bridge number 1: hub is missing"),
        ('name = "a/b"\nhub = "h"', "bridge number 1: name is not the name of a bridge"),
        ('name = "a"\nhub = "h"\nfilters = []', "0 filters"),
        ('name = "a"\nhub = "h"\nfilters = ["a/#/b"]', "bridge number 1: filters"),
        ('name = "a"\nhub = "h"\nfilters = ["$sys/#"]', "topics that begin with $ are a broker's own"),
        ('name = "a"\nhub = "h"\nprefix = "$x"', "topics that begin with $ are a broker's own"),
        ('name = "a"\nhub = "h"\nprefix = "x/+"', "bridge number 1: prefix"),
        ('name = "a"\nhub = "h"\nsecret = "s"\nsecret_file = "f"', "has secret and secret_file"),
        ('name = "a"\nhub = "h"\nsecret_file = "f"', "cannot read"),
        ('name = "a"\nhub = "h"\n[[bridge]]\nname = "a"\nhub = "h"', "occurs twice"),
        ('name = "a"\nhub = "h"\nspeed = 1', "speed"),
    ],
)
def test_invalid_bridges(text: str, complaint: str) -> None:
    assert complaint in complaint_of(f"[[bridge]]\n{text}")


# -- clusters ---------------------------------------------------------------------------------------------------------

CLUSTER = """
[cluster]
name = "plant"
node = "one"
servers = ["nats://10.0.0.1:4222", "nats://10.0.0.2:4222", "nats://[fd00::3]:4222"]
monitors = ["http://10.0.0.1:8222", "http://10.0.0.2:8222", "http://[fd00::3]:8222"]
"""
ROUTES = 'routes = ["10.0.0.1:6222", "10.0.0.2:6222", "[fd00::3]:6222"]'


POSTGRES = """
[cluster]
name = "plant"
node = "one"
engine = "postgres"
servers = ["postgresql://db1:5432/godwit", "postgresql://db2:5432/godwit"]
"""


def test_a_cluster() -> None:
    section = load(CLUSTER).cluster
    assert section is not None
    assert (section.name, section.node, section.run, section.keep_bytes) == ("plant", "one", None, 2 * 1024 * MIB)
    assert section.servers[2] == "nats://[fd00::3]:4222"
    text = f'{CLUSTER}user = "u"\npassword = "p"\nkeep_bytes = "1GiB"\n[cluster.run]\nnumber = 3\n{ROUTES}'
    section = load(text).cluster
    assert section is not None
    assert section.run is not None
    assert (section.user, section.password, section.keep_bytes) == ("u", "p", 1024 * MIB)
    assert (section.run.number, len(section.run.routes), section.run.program) == (3, 3, None)
    assert "p" not in repr(section).split("password")
    assert load("").cluster is None


TLS = 'ca = "ca.crt"\ncertificate = "n.crt"\nkey = "n.key"\n'
SECURE = CLUSTER.replace("nats://", "tls://").replace("http://", "https://")


def test_a_cluster_with_tls() -> None:
    configuration = load(f"{SECURE}{TLS}[cluster.run]\nnumber = 1\n{ROUTES}")
    section = configuration.cluster
    assert section is not None
    assert section.has_tls
    assert [str(path) for path in (section.ca, section.certificate, section.key)] == ["ca.crt", "n.crt", "n.key"]
    assert section.key in configuration.private_files
    section = load(SECURE).cluster
    assert section is not None
    assert section.has_tls
    section = load(f'{POSTGRES}ca = "ca.crt"\n').cluster
    assert section is not None
    assert section.has_tls
    section = load(CLUSTER).cluster
    assert section is not None
    assert not section.has_tls


def test_a_cluster_on_postgresql() -> None:
    section = load(f'{POSTGRES}user = "u@x"\npassword = "p/q r"\n').cluster
    assert section is not None
    assert (section.engine, section.is_single_allowed) == ("postgres", False)
    assert section.servers == (
        "postgresql://u%40x:p%2Fq%20r@db1:5432/godwit",
        "postgresql://u%40x:p%2Fq%20r@db2:5432/godwit",
    )
    assert "p%2Fq" not in repr(section)
    assert load(f'{POSTGRES}user = "u"\npassword = "p"\n').has_secrets
    assert not load(POSTGRES).has_secrets
    section = load(f"{POSTGRES}single = true\n").cluster
    assert section is not None
    assert section.is_single_allowed


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (CLUSTER.replace('"one"', '"o/e"'), "cluster.node is not a name"),
        (CLUSTER.replace('"plant"', '"p.q"'), "cluster.name is not a name"),
        (CLUSTER.replace(', "nats://[fd00::3]:4222"', ""), "cluster.servers has 2 addresses: give 3 or more"),
        (CLUSTER.replace("nats://10.0.0.2", "nats://u:secret@10.0.0.2"), "an address that is not nats://HOST:PORT"),
        (
            CLUSTER.replace("http://10.0.0.2", "10.0.0.2"),
            "cluster.monitors has an address that is not http://HOST:PORT",
        ),
        (f"{CLUSTER}suspect_s = 0.5", "at least twice heartbeat_s"),
        (f"{CLUSTER}withdraw_s = 0", "cluster.withdraw_s is 0"),
        (f'{CLUSTER}password = "x"', "a password and no user"),
        (f'{CLUSTER}user = "x"', "cluster.user needs password or password_file"),
        (f'{CLUSTER}user = "x"\npassword_file = "none"', "cluster.password_file: cannot read 'none'"),
        (f"{CLUSTER}colour = 1", "cluster.colour is not a known key"),
        (f'{CLUSTER}keep_bytes = "2"', "cluster.keep_bytes is not understood"),
        (f"{CLUSTER}[cluster.run]\nnumber = 4\n{ROUTES}", "cluster.run.number is 4"),
        (f"{CLUSTER}[cluster.run]\nnumber = 1\nroutes = []", "cluster.run.routes must have 3 different addresses"),
        (f"{CLUSTER}[cluster.run]\nnumber = 1", "cluster.run.routes is missing"),
        (f"{CLUSTER}single = true", 'cluster.single is for engine = "postgres"'),
        (f'{CLUSTER}engine = "postgres"', "an address that is not postgresql://HOST:PORT/DATABASE"),
        (POSTGRES.replace("db1", "u:secret@db1"), "an address that is not postgresql://HOST:PORT/DATABASE"),
        (f'{SECURE}certificate = "n.crt"', "cluster.certificate and cluster.key belong together"),
        (f"{CLUSTER}{TLS}", "cluster.ca is given, and the servers have no TLS: write tls:// in servers"),
        (SECURE.replace("tls://10.0.0.2", "nats://10.0.0.2"), "cluster.servers has addresses with and without TLS"),
        (SECURE.replace("https://10.0.0.2", "http://10.0.0.2"), "cluster.monitors has addresses with and without TLS"),
        (f"{SECURE}[cluster.run]\nnumber = 1\n{ROUTES}", "cluster.run with tls:// needs ca, certificate and key"),
        (
            f"{CLUSTER.replace('nats://', 'tls://')}{TLS}[cluster.run]\nnumber = 1\n{ROUTES}",
            "cluster.run starts servers with TLS for both",
        ),
        (f'{POSTGRES}certificate = "c"\nkey = "k"', "cluster.certificate needs cluster.ca"),
        (f'{POSTGRES}monitors = ["http://db1:1"]', 'cluster.monitors is for engine = "nats"'),
        (f"{POSTGRES}[cluster.run]\nnumber = 1\n{ROUTES}", 'cluster.run is for engine = "nats"'),
    ],
)
def test_invalid_clusters(text: str, complaint: str) -> None:
    assert complaint in complaint_of(text)
