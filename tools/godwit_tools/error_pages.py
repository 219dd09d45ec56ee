"""Make a page for each reason code and each exception: event, cause and remedy.

Names, numbers, classes and reactions come from godwit.errors, the explanations from the tables of this module. A code
or an exception without an explanation is an error.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Final, NamedTuple

from godwit import errors
from godwit.errors import FINAL_CODES, BrokerError, Code, GodwitError, broker_error

HEAD: Final = """# Errors

Every error of Godwit is a `godwit.GodwitError`, and its text names the event, the thing it happened to, and the remedy.
A refusal of the broker carries a *code*: `error.code` in Python, and the number in
the [protocol](../PROTOCOL.md#23-reason-codes). Each code and each exception has a page.
"""


class Explanation(NamedTuple):
    """The three parts of a page, a sentence or more each."""

    event: str
    cause: str
    remedy: str


CODES: Final[dict[Code, Explanation]] = {
    Code.NORMAL: Explanation(
        "The connection was closed on purpose.",
        "The program, or the broker, closed it. Nothing is wrong.",
        "Nothing. If your program did not close it, it reconnects automatically.",
    ),
    Code.SHUTDOWN: Explanation(
        "The broker is being stopped.",
        "An operator, or the service manager, ended the broker's process; it notifies its clients first.",
        "Nothing: clients reconnect when the broker is back. Give clients several addresses if another broker takes "
        "over.",
    ),
    Code.PROTOCOL: Explanation(
        "The peer received bytes that the protocol does not allow, and closed the connection.",
        "The two sides have different versions or one has a defect. A client of your own makes this error often at "
        "first.",
        "Use the same version on both sides. With a client of your own, compare the bytes with the examples in the "
        "[protocol](../PROTOCOL.md). The reason in the event line names the rule.",
    ),
    Code.LIMIT: Explanation(
        "One side sent more than the other had allowed, and the connection was closed.",
        "The credit of a channel, the number of channels, or the size of a record was exceeded.",
        "With the library this is a defect: report it with the event line. In a client of your own, wait for credit "
        "before sending.",
    ),
    Code.VERSION: Explanation(
        "The broker does not speak the version of the protocol that the client uses.",
        "Client and broker are of releases that are too far apart.",
        "Upgrade the older side: brokers first, then clients ([upgrade](../guides/operations.md#upgrade)). The "
        "client does not reconnect.",
    ),
    Code.BUSY: Explanation(
        "The broker did not accept the connection.",
        "It has as many connections as `limits.clients` or `limits.clients_per_host` allow, or no memory for "
        "unfinished records, or too many connections that have not logged in.",
        "Wait: the client tries again by itself. If it lasts, raise `limits.clients`, or find the host that connects"
        " too often with `godwit clients`.",
    ),
    Code.TIMEOUT: Explanation(
        "No packet arrived for the idle timeout, and the connection was given up.",
        "The network is interrupted, a firewall has forgotten the path, or the peer was killed or stalled.",
        "Nothing: the client reconnects and sends unconfirmed messages again. If it happens often, look for UDP "
        "timeouts of a NAT, and check the round trip with `godwit ping`.",
    ),
    Code.RESET: Explanation(
        "The peer answered that it does not know the connection.",
        "It was restarted.",
        "Nothing: the client reconnects, and sessions, cursors and unconfirmed messages continue.",
    ),
    Code.INTERNAL: Explanation(
        "The peer ended the connection because of a defect of its own.",
        "An unexpected error in the broker or in the client. An unknown code of a newer peer is treated like this, "
        "too.",
        "Report it with the lines of the broker's event log. The client reconnects.",
    ),
    Code.SEALING: Explanation(
        "The connection must be sealed and is not, or sealing it failed.",
        "The broker refuses plain packets of other machines, it does not seal (Godwit 0.5 or older), or its key is not "
        "the one that the client expects.",
        "Connect to `udps://HOST:PORT` with Godwit 0.6 or newer. If the key of the broker has changed on purpose, "
        "remove its line from `known_brokers`, or pin the new fingerprint, which the broker prints when it starts.",
    ),
    Code.STANDBY: Explanation(
        "This broker is a standby of a cluster, and another one is active, or will be within seconds.",
        "A client knows the address of one node only, or the cluster is changing its active node.",
        'Connect with the addresses of all nodes, as in `connect("a:50000,b:50000,c:50000")`: clients move to the '
        "active one. `godwit cluster status` shows the nodes.",
    ),
    Code.UNKNOWN_KIND: Explanation(
        "The broker does not know a request of the client.",
        "The client is newer than the broker.",
        "Upgrade the broker, or do not use that function.",
    ),
    Code.MALFORMED: Explanation(
        "A request has an invalid field.",
        "A number out of range, two options that exclude each other, a commit without a cursor, or an offset that "
        "does not exist yet. The text names the field.",
        "Correct the call. The same request fails again.",
    ),
    Code.NOT_ALLOWED: Explanation(
        "The client may not do this, or has not proved its name.",
        "No `[[access.rule]]` of the broker allows the action on this topic or kind of work; or the secret is "
        "missing or wrong; or the topic begins with `$`, which belongs to the broker.",
        "Compare the name and the action in the text with the rules ([security](../guides/security.md)). A login "
        "with a wrong name and one with a wrong secret have the same text on purpose: the broker's event line has "
        "the real reason.",
    ),
    Code.NO_SUCH_TOPIC: Explanation(
        "The topic does not exist, and this use does not create it.",
        "`[topics]` of the broker has the policy `publishers` (a subscriber was first) or `explicit`.",
        "Create it: `godwit topics create TOPIC`, or list it in `topics.create`, or change the policy. Check the "
        "spelling with `godwit topics`.",
    ),
    Code.BAD_TOPIC: Explanation(
        "The name of a topic is invalid.",
        "It is empty, longer than the limit, or has a wildcard (`+`, `#`, `*`) or a control character.",
        "Publish to one topic by its name. Wildcards belong to filters of subscriptions.",
    ),
    Code.BAD_FILTER: Explanation(
        "A filter is invalid.",
        "It is empty or too long, `#` is not at its end, or a wildcard shares a level with other characters.",
        "Write `home/+/temperature`, `home/#` or `home/*/temperature`: a wildcard is a whole level.",
    ),
    Code.TOO_LARGE: Explanation(
        "A message, a job or a result is larger than the broker accepts.",
        "The limit of messages is `limits.message_bytes` (16 MiB by default), that of jobs and results 1 MiB.",
        "Send large data as a [file](../guides/files.md), or raise the limit.",
    ),
    Code.NOT_SUBSCRIBED: Explanation(
        "The subscription that was named does not exist.",
        "It has ended, or `godwit kick CLIENT FILTER` names filters that are not exactly those of a subscription.",
        "List the subscriptions with `godwit clients` and repeat all their filters.",
    ),
    Code.BAD_NAME: Explanation(
        "The name of a client, a publisher or a cursor is invalid.",
        "It is empty, too long, or has a control character.",
        "Choose another name. The client does not reconnect with this one.",
    ),
    Code.NAME_IN_USE: Explanation(
        "Another client with this name is connected and answers.",
        "Two programs were started with the same `name`, or the older one is still closing.",
        "Give each program its own name. To move a name to another machine, stop the older program, or let both "
        "prove the name with its secret: then the newer one takes it over.",
    ),
    Code.TAKEN_OVER: Explanation(
        "The same client connected again elsewhere, and this connection ended.",
        "A second start of the same program with the same identity, or a client that proved the same name.",
        "Stop one of the two. This client does not reconnect: they would take the name from each other for ever.",
    ),
    Code.KICKED: Explanation(
        "Another client removed this client, or one of its subscriptions.",
        "A client with the right to kick called `godwit kick`; the text has its name and reason.",
        "Ask the operator. The client does not reconnect by itself.",
    ),
    Code.STALE_EPOCH: Explanation(
        "A publisher with a fixed identity was refused.",
        "A newer run of the same identity, with a higher `epoch`, has published meanwhile.",
        "End the older run. To start a new sequence on purpose, publish with a higher epoch.",
    ),
    Code.TOPIC_EXISTS: Explanation(
        "A topic cannot be created because it exists, or cannot be deleted because it is in use.",
        "It was created before, or has a connected publisher or a subscription to exactly its name.",
        "Use it as it is. To delete it, end its publishers and subscriptions first.",
    ),
    Code.NOT_LOGGED_IN: Explanation(
        "A request came before the login, or no login came in time.",
        "The path between client and broker is very slow, or a client of your own sends requests too early.",
        "Nothing with the library: it reconnects. In a client of your own, wait for `welcome`.",
    ),
    Code.TOO_MANY: Explanation(
        "A limit or a quota of the broker is reached.",
        "Topics, subscriptions, sessions, retained bytes, jobs, tasks or lists. The text names the key of the "
        "configuration.",
        "Delete unused topics (`godwit topics delete`), use a shorter session expiry, or raise that key "
        "([sizing](../guides/operations.md#sizing)).",
    ),
    Code.NO_SUCH_CLIENT: Explanation(
        "No client, session or consumer group has this name.",
        "It was never connected, its session or the group has expired, or the name is misspelt.",
        "List the names with `godwit clients` or `godwit groups`.",
    ),
    Code.STORAGE: Explanation(
        "The broker could not write its log, and confirmed nothing.",
        "The disk is full, read-only or defective.",
        "Free some space, or let the log keep less. No restart is needed: the broker tries again with the next "
        "message. See [disks](../guides/operations.md#when-a-disk-is-full-or-damaged).",
    ),
    Code.NO_SUCH_OFFSET: Explanation(
        "A subscription was to start at an offset that the log does not have yet.",
        "The number is wrong, or belongs to another log, or an older copy of the log was restored.",
        "Start at `earliest`, `latest` or a time. Store bookmarks instead of plain offsets: they detect another log.",
    ),
    Code.NO_SUCH_JOB: Explanation(
        "The job does not exist, no longer exists, or this client may not see it.",
        "Ended jobs are deleted after `jobs.keep_s` (an hour by default), or earlier if memory is short; or the job "
        "has ended already and cannot be cancelled; or another controller submitted it.",
        "Read results in time, or raise `jobs.keep_s`. Connect under the name of the controller that submitted the "
        "job.",
    ),
    Code.BAD_KIND: Explanation(
        "A kind of work is invalid.",
        "It is empty, too long, begins with `$`, or has a wildcard or a control character.",
        "Choose a plain name such as `resize` or `media/resize`.",
    ),
}

EXCEPTIONS: Final[dict[str, Explanation]] = {
    "GodwitError": Explanation(
        "The base class of all errors on this page.",
        "It is never raised itself, except by the command line for a missing development tool.",
        "Catch it to handle every error that Godwit raises on purpose.",
    ),
    "DecodeError": Explanation(
        "Bytes from a peer or a file do not follow the format.",
        "A damaged packet, a foreign program on the port, or a file that is not a log. `reason` is one word.",
        "Nothing for packets: they are dropped, counted and sent again.",
    ),
    "UsageError": Explanation(
        "The program made an invalid call.",
        "A wrong type, a number out of range, or a call in the wrong place.",
        "Correct the program. The text names the argument.",
    ),
    "RecordTooLargeError": Explanation(
        "A record is larger than the peer's limit.",
        "Raised by the transport; publishers report it as code TOO_LARGE.",
        "Send smaller records, or a file.",
    ),
    "ChannelError": Explanation(
        "A channel of the transport is unknown, finished, or one too many.",
        "A program that uses `godwit.transport` directly sent on a wrong channel.",
        "Open a channel first, and do not use it after its end.",
    ),
    "ConfigurationError": Explanation(
        "A setting is invalid.",
        "A key of the broker's file, or an argument of a settings class, is unknown or out of its bounds.",
        "Correct the line that the text names. `godwit config check FILE` checks a file without starting a broker.",
    ),
    "ForkedError": Explanation(
        "A client was used in a forked child of the process that made it.",
        "`os.fork` or `multiprocessing` with the method `fork` copied the program with its connection.",
        'Connect again in the child, or use `multiprocessing.set_start_method("spawn")`.',
    ),
    "SendBufferFullError": Explanation(
        "The send buffer of a connection is full.",
        "The network is slower than the program. Raised by the transport; clients raise BufferFull.",
        "Wait for the event Writable, then send again.",
    ),
    "BufferFullError": Explanation(
        "The client's buffer for unconfirmed messages is full. Its short name is `godwit.BufferFull`.",
        "The program publishes faster than the network or the broker confirms, or the broker is away.",
        "`await publisher.ready()`, then send again; or use `client.publish`, which waits.",
    ),
    "ConnectionClosedError": Explanation(
        "The connection has ended.",
        "`code` is one of the codes on this page, `reason` the text of the side that closed it.",
        "Look at the page of the code.",
    ),
    "BrokerError": Explanation(
        "The broker refused a request, or ended a subscription or the client.",
        "`code` is one of the codes on this page, `text` the reason that the broker sent.",
        "Look at the page of the code.",
    ),
    "AccessError": Explanation(
        "The client has no right to do this, or has not proved its name.",
        "No rule of the broker allows it, or the secret is missing or wrong.",
        "See code [NOT_ALLOWED](NOT_ALLOWED.md).",
    ),
    "TopicError": Explanation(
        "A topic does not exist, exists already, or has an invalid name.",
        "The policy of the broker, or the name.",
        "See the codes [NO_SUCH_TOPIC](NO_SUCH_TOPIC.md), [TOPIC_EXISTS](TOPIC_EXISTS.md), [BAD_TOPIC](BAD_TOPIC.md)"
        " and [BAD_FILTER](BAD_FILTER.md).",
    ),
    "BadTopicError": Explanation(
        "The name of a topic is invalid.",
        "The client checks names before it sends them, so this is a UsageError, too.",
        "See code [BAD_TOPIC](BAD_TOPIC.md).",
    ),
    "BadFilterError": Explanation(
        "A filter is invalid.",
        "The client checks filters before it sends them, so this is a UsageError, too.",
        "See code [BAD_FILTER](BAD_FILTER.md).",
    ),
    "JobError": Explanation(
        "A job does not exist (any more), or this client may not see it.",
        "It was deleted after its end, or another controller submitted it.",
        "See code [NO_SUCH_JOB](NO_SUCH_JOB.md).",
    ),
    "BadKindError": Explanation(
        "A kind of work is invalid.",
        "The client checks kinds before it sends them, so this is a UsageError, too.",
        "See code [BAD_KIND](BAD_KIND.md).",
    ),
    "NameInUseError": Explanation(
        "Another client that is still connected has this name.",
        "Two programs were started with the same name.",
        "See code [NAME_IN_USE](NAME_IN_USE.md).",
    ),
    "TakenOverError": Explanation(
        "The same client has connected again elsewhere.",
        "A second start of the same program, or a client that proved the same name.",
        "See code [TAKEN_OVER](TAKEN_OVER.md).",
    ),
    "SealingError": Explanation(
        "The connection must be sealed, or the broker's key is not the expected one.",
        "A plain client of another machine, a broker of 0.5 or older, or another key than the pinned or known one.",
        "See code [SEALING](SEALING.md).",
    ),
    "KickedError": Explanation(
        "Another client removed this client or its subscription.",
        "An operator called `godwit kick`.",
        "See code [KICKED](KICKED.md).",
    ),
    "JobFailedError": Explanation(
        "A job has ended without all its results.",
        "A task failed for good, the deadline passed, or the broker has deleted some results. `errors` has the "
        "reasons by task, `results` the results that exist.",
        "Correct the cause in the handler, or raise `retries`, `deadline_s` or `time_limit_s`, and submit the job "
        "again.",
    ),
    "JobCancelledError": Explanation(
        "The job was cancelled before it was done.",
        "A client called `cancel`, or `godwit job cancel`.",
        "Submit it again if that was a mistake. `results` has the results of finished tasks.",
    ),
    "TaskFailedError": Explanation(
        "A handler of a worker failed an attempt. Its short name is `godwit.TaskFailed`.",
        "The handler raised it, with a text for the controller; with `final=True` the task is not retried.",
        "Look at the text. It is in `JobFailedError.errors` of the controller.",
    ),
    "BrokerUnreachableError": Explanation(
        "No broker answered in time.",
        "It does not run, listens on another address or port, or a firewall blocks UDP.",
        "Start it, check the address, and try `godwit ping --broker HOST:PORT`. A broker listens on this machine "
        "only unless `--listen` or `listen` names another address.",
    ),
    "MessageExpiredError": Explanation(
        "A message with `expires_s` expired before the broker confirmed it.",
        "The broker was away, or the send buffer was full, for that long.",
        "Nothing, if the message is useless by now: it was dropped from the queue. Otherwise publish it again, with a"
        " longer time.",
    ),
    "RequestError": Explanation(
        "A request to another client has no result.",
        "One of the three kinds below.",
        "Catch this class to treat them alike.",
    ),
    "NoResponderError": Explanation(
        "`request` was called, and no client that may reply is subscribed to its topic.",
        "No responder is connected, or it is subscribed to other topics. Subscribers whose filter begins with a "
        "wildcard, such as `#`, do not count.",
        "Start a responder: `@client.replies(topic)`, or `godwit reply TOPIC --exec CMD`. Compare the topics.",
    ),
    "NoReplyError": Explanation(
        "No reply to a request arrived within `timeout_s`.",
        "The responder is slow or was lost, or the only subscriber of the topic does not reply, such as a logger.",
        "Give it more time, or repeat the request: the responder may handle it twice.",
    ),
    "RequestFailedError": Explanation(
        "The handler of a responder raised an exception.",
        "The text names the responder and its exception.",
        "Correct the request, or the handler. `error.reply` is the reply.",
    ),
    "ReplyTimeoutError": Explanation(
        "A call with `timeout_s` was not confirmed or answered in time.",
        "The broker or the network is away or slow.",
        "A message or job that was sent is not withdrawn: it is confirmed later. Give jobs a `key` before you submit"
        " them again.",
    ),
    "PayloadError": Explanation(
        "A received payload is not a text in UTF-8, or not JSON.",
        "`message.text` or `message.json()` was used for a payload that is something else.",
        "Use `message.payload`, or correct the publisher that the message names.",
    ),
    "FileTransferError": Explanation(
        "A file could not be sent or received.",
        "Reading or writing the file failed, or it arrived with a wrong SHA-256, or exceeds a size limit.",
        "Look at the text; send the file again: a transfer resumes where it ended.",
    ),
    "StorageError": Explanation(
        "The log cannot be opened, read or written.",
        "The folder, the disk or the file has a problem. Raised in the broker and by `godwit log`.",
        "See [disks](../guides/operations.md#when-a-disk-is-full-or-damaged).",
    ),
    "DiskError": Explanation(
        "The disk is full, read-only or defective: nothing was appended.",
        "The system refused a write.",
        "Free some space. Clients get code [STORAGE](STORAGE.md) meanwhile.",
    ),
    "LogDamagedError": Explanation(
        "The structure of the log's file is damaged.",
        "A defective disk, or a file that was changed by another program.",
        "Stop the broker, copy the folder, and run `godwit log recover`: it saves all intact blocks.",
    ),
    "LogInUseError": Explanation(
        "Another broker uses the same folder.",
        "A broker is still running, or two configurations name the same `data`.",
        "Stop the other broker, or choose another folder with `--data`.",
    ),
    "LogVersionError": Explanation(
        "The file was made by a newer Godwit, or is not a log.",
        "The broker was downgraded, or `--data` names a folder of another program.",
        "Use the newer Godwit. The file was not changed.",
    ),
    "NodeStoppedError": Explanation(
        "A node of a cluster has ended, because going on could lose confirmed messages, or because it cannot work.",
        "The folder belongs to another log, the engine has lost records, two nodes have one name, or the engine "
        "refuses user and password. The text has the reason.",
        "Follow the text; `godwit cluster check` compares the nodes. Do not delete folders before that.",
    ),
    "AddressError": Explanation(
        "The address of the broker is invalid, or its name cannot be resolved.",
        "A misspelt host, a port outside 1 to 65535, or no name server.",
        "Write HOST:PORT, or `[ADDRESS]:PORT` for IPv6.",
    ),
    "SocketError": Explanation(
        "The system refused to open, bind or use a socket.",
        "The port is in use, needs a right, or the address does not belong to this machine.",
        "Choose another port with `--listen`, or stop the program that has it.",
    ),
}


def pages() -> dict[str, str]:
    """Return the text of each page by its path in the site."""
    found = {"errors/index.md": _index()}
    for code in Code:
        found[f"errors/{code.name}.md"] = _code_page(code)
    for kind in exceptions():
        found[f"errors/{kind.__name__}.md"] = _exception_page(kind)
    return found


def exceptions() -> list[type[GodwitError]]:
    """Return the exceptions of godwit.errors in the order of their definition."""
    return [
        found
        for found in vars(errors).values()
        if inspect.isclass(found) and issubclass(found, GodwitError) and found.__module__ == errors.__name__
    ]


def exception_of(code: Code) -> type[BrokerError]:
    """Return the class that a program catches for a code."""
    return type(broker_error(code, ""))


def _index() -> str:
    codes = [
        f"| {code.value} | [{code.name}]({code.name}.md) | {CODES[code].event} | {_class_link(exception_of(code))} |"
        for code in Code
    ]
    kinds = [f"| {_class_link(kind)} | {EXCEPTIONS[kind.__name__].event} |" for kind in exceptions()]
    return "\n".join(
        [
            HEAD,
            "## Codes\n",
            "| code | name | event | in Python |",
            "|---|---|---|---|",
            *codes,
            "\n## Exceptions\n",
            "| exception | event |",
            "|---|---|",
            *kinds,
            "",
        ]
    )


def _code_page(code: Code) -> str:
    sender = "the transport" if code < 100 else "the broker"
    reaction = "does not reconnect" if code in FINAL_CODES else "reconnects by itself"
    facts = [
        f"Code {code.value}, sent by {sender}. In Python: {_class_link(exception_of(code))}.",
        f"A client whose connection ends with it {reaction}.",
    ]
    if code is Code.NAME_IN_USE:
        facts[1] = "A client that gets it at its first login does not try again; one that was online reconnects."
    return "\n".join([f"# {code.name}\n", *facts, "", *_parts(CODES[code])])


def _exception_page(kind: type[GodwitError]) -> str:
    above = [_class_link(base) for base in kind.__mro__[1:] if base.__module__ == errors.__name__]
    others = [f"`{base.__name__}`" for base in kind.__bases__ if base.__module__ == "builtins"]
    facts = f"It is a {', '.join(above + others)}." if above else "It is an `Exception`."
    codes = [f"[{code.name}]({code.name}.md)" for code in Code if code >= 100 and exception_of(code) is kind]
    lines = [f"# {kind.__name__}\n", facts]
    if codes:
        lines.append(f"\nRaised for the codes {', '.join(codes)}.")
    return "\n".join([*lines, "", *_parts(EXCEPTIONS[kind.__name__])])


def _class_link(kind: type[BaseException]) -> str:
    return f"[`{kind.__name__}`]({kind.__name__}.md)"


def _parts(text: Explanation) -> Iterator[str]:
    yield f"## Event\n\n{text.event}\n"
    yield f"## Cause\n\n{text.cause}\n"
    yield f"## Remedy\n\n{text.remedy}\n"
