"""The limits of Godwit in one place, with the relations between them asserted. Those of one module stand at its top.

A limit that comes from the protocol (both sides must agree on it) is marked *protocol*; the others are defaults or
bounds of this implementation, which another one may choose differently.
"""

from __future__ import annotations

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB

# -- datagrams --------------------------------------------------------------------------------------------------------
BASE_DATAGRAM_BYTES: Final = 1200
"""*protocol*: every path must carry this much; what RFC 9000 and RFC 8899 start from."""
MAX_DATAGRAM_BYTES: Final = 1472
"""Default upper end of the path MTU search: Ethernet's 1500 less IPv4 and UDP headers."""
LARGEST_DATAGRAM_BYTES: Final = 65_000
"""*protocol*: no datagram is longer."""
MAX_FRAMES: Final = 256
"""*protocol*: in one packet."""
MAX_TRAIN_BYTES: Final = 64_000
"""A train is one system call; the kernel takes just under 64 KiB of UDP with headers."""
MAX_TRAIN_DATAGRAMS: Final = 64
"""Linux takes 64 segments a call (newer ones 128)."""

# -- records, channels, credit ----------------------------------------------------------------------------------------
MAX_MESSAGE_BYTES: Final = 16 * MIB
MAX_RECORD_BYTES: Final = MAX_MESSAGE_BYTES + 64 * KIB
"""A message of the largest size, and room for the batch around it."""
LARGEST_RECORD_BYTES: Final = 2**31
"""*protocol*: a fragment's place in its record is 32 bits wide."""
RECORD_COST_BYTES: Final = 128
"""*protocol*: what a record costs of the credit beyond its length, so that a flood of empty ones is bounded too."""
MAX_UNRELIABLE_BYTES: Final = BASE_DATAGRAM_BYTES - 40
"""*protocol*: an unreliable record fits a base datagram with all headers."""
CHANNEL_WINDOW_BYTES: Final = 4 * MIB
CONNECTION_WINDOW_BYTES: Final = 8 * MIB
CONTROL_WINDOW_BYTES: Final = 256 * KIB
"""*protocol*: what may be under way and unacknowledged on channel 0, which has no credit."""
CONTROL_QUEUE_BYTES: Final = 1 * MIB
"""What may wait on channel 0, which has a send buffer of its own."""
MAX_CONTROL_RECORD_BYTES: Final = 128 * KIB
MAX_CHANNELS: Final = 16_384
PIECE_BYTES: Final = 1024
"""Fragments beyond a gap are bounded as if each were this long: a flood of tiny ones is refused."""
ASSEMBLY_COST_BYTES: Final = 512
"""What a record that waits for its fragments, or for an earlier record, takes of memory beyond what it costs of the
credit: the objects around its bytes."""
PIECE_COST_BYTES: Final = 256
"""The same of a fragment beyond a gap."""
MAX_UNFINISHED_BYTES: Final = 512 * MIB
"""Such records of all connections of a broker, at what they take of memory. Beyond it connections are closed."""
UNADMITTED_BYTES: Final = 96 * KIB
"""What is held for a client before its login: room for the longest login, its fragments in any order."""
MAX_CONFIRMS_WAITING: Final = 65_536
"""Channels whose confirm a peer has not acknowledged; beyond it the oldest is forgotten, and the peer sends again."""
SEND_BUFFER_BYTES: Final = 4 * MIB
UNRELIABLE_QUEUE_BYTES: Final = 256 * KIB
"""What may wait of unreliable records; beyond it the oldest are dropped and counted."""

# -- acknowledgements and recovery ------------------------------------------------------------------------------------
MAX_ACK_RANGES: Final = 64
"""*protocol*: in one frame. The oldest gaps beyond it are forgotten by the receiver."""
MAX_ACK_DELAY_S: Final = 0.005
"""*protocol*: the longest that an acknowledgement waits for something to ride with."""
PACKET_GAP_THRESHOLD: Final = 3
"""RFC 9002, 6.1.1: a packet is lost when one this much newer has arrived."""
MAX_PACKET_GAP_THRESHOLD: Final = 64
"""The threshold grows to this on a path that reorders."""
TIME_THRESHOLD: Final = 9 / 8
"""RFC 9002, 6.1.2: in round trips."""
TIMER_GRANULARITY_S: Final = 0.001
INITIAL_ROUND_TRIP_S: Final = 0.1
MAX_PROBE_INTERVAL_S: Final = 1.0
"""The longest interval of the probe timer, and so the longest wait after a partition."""
MAX_SENT_PACKETS: Final = 65_536

# -- connections ------------------------------------------------------------------------------------------------------
GO_BACK_N_WINDOW: Final = 15
MAX_ARQ_WINDOW: Final = 4096
IDLE_TIMEOUT_S: Final = 30.0
KEEP_ALIVE_S: Final = 10.0
HANDSHAKE_TIMEOUT_S: Final = 10.0
HANDSHAKE_RETRY_S: Final = 0.25
MAX_HANDSHAKE_RETRY_S: Final = 0.5
COOKIE_LIFETIME_S: Final = 15.0
MAX_CONNECTIONS: Final = 20_000
MAX_UNADMITTED_PER_HOST: Final = 64
"""While one host, or IPv6 network of 64 bits, has this many connections without a login or more, each new one replaces
its oldest if that is older than LOGIN_GRACE_S. So their number grows beyond this only with younger ones."""
LOGIN_GRACE_S: Final = 2.0
"""A connection without a login does not make room for another one of the same host sooner than this."""
MAX_LOGINS_AT_ONCE: Final = 512
"""While one host has this many connections without a login, none older than LOGIN_GRACE_S, its other connects wait."""
MAX_HANDSHAKE_APPLICATION_BYTES: Final = 700
"""*protocol*: what an application may put into connect and accept, which fit a base datagram."""
MAX_REASON_BYTES: Final = 256
AMPLIFICATION: Final = 3
"""*protocol*: bytes sent to an address that has proven nothing, at most, for each byte received from it."""
MAX_RESETS_PER_S: Final = 2000
"""For the processor's sake: a restarted server tells all its clients within seconds, and a flood costs little."""
MAX_ANSWERS_WAITING: Final = 1024
"""Cookies, accepts, refusals and resets that wait for the socket; beyond it they are dropped, and asked for again."""
HANDSHAKE_COST_A_TURN: Final = 16
"""What a server spends on handshakes before it serves its open connections again: a hello costs 1, a connect
CONNECT_COST. Further ones wait."""
CONNECT_COST: Final = 4
MAX_HELLOS_WAITING: Final = 16_384
MAX_CONNECTS_WAITING: Final = 4096
"""Each client waits once, however often it repeats its packet. Beyond these limits packets are dropped; clients repeat
them."""
HANDSHAKE_STALE_S: Final = 3.0
"""A waiting packet that was not repeated for this time is dropped too: its client has given up or begun anew."""
RECEIVE_BUFFER_BYTES: Final = 212_992
"""What Linux gives unasked."""

# -- sealed connections -----------------------------------------------------------------------------------------------
MAX_CRYPTO_BYTES: Final = 64 * KIB
"""*protocol*: of the TLS handshake in each direction."""
MAX_CRYPTO_PIECES: Final = 16
"""Parts of it that wait for earlier ones."""
MAX_SEALING: Final = 512
"""TLS handshakes that a server has at once: each holds about 40 KB. A new one replaces the oldest of the host that has
the most, or is refused."""
SEALING_TIMEOUT_S: Final = 20.0
"""How long a client waits for the end of the TLS handshake after its connect was accepted."""
HALF_OPEN_TIMEOUT_S: Final = 10.0
"""How long a server waits for it."""
TLS_STEPS_A_TURN: Final = 8
"""TLS computations of a server before it serves its open connections again: one takes about 0.4 ms."""
KEY_PACKETS: Final = 2**22
"""A key is replaced after this many packets, or after KEY_LIFETIME_S."""
MAX_KEY_PACKETS: Final = 2**23
"""*protocol*: no key seals more packets (RFC 9001, 6.6, for packets of up to 64 KiB)."""
KEY_LIFETIME_S: Final = 3600.0
assert KEY_PACKETS < MAX_KEY_PACKETS

# -- batches and control messages -------------------------------------------------------------------------------------
MAX_BATCH_MESSAGES: Final = 65_536
"""*protocol*: in one batch."""
MAX_RECORD_BATCHES: Final = 1024
"""*protocol*: of a publisher in one record."""
MAX_EXTENSION_BYTES: Final = 4 * KIB
"""*protocol*: of the extension of a batch."""
MAX_EXTENSION_FIELDS: Final = 32
"""*protocol*: keys in the extension of a batch."""
MAX_EXTENSION_ITEMS: Final = 512
"""*protocol*: values in the extension of a batch, with keys and containers counted."""
MAX_LIFETIME_US: Final = (2**32 - 1) * 1_000_000
"""*protocol*: of a message that expires: 2^32 - 1 seconds, the range of MQTT."""
MAX_HEADERS: Final = 64
"""*protocol*: of a message."""
MAX_HEADER_NAME_BYTES: Final = 256
"""*protocol*: of the name of a header, in UTF-8."""
MAX_HEADER_VALUE_BYTES: Final = 2 * KIB
"""*protocol*: of the value of a header, in UTF-8."""
MAX_CONTENT_TYPE_BYTES: Final = 256
"""*protocol*: of the content type of a message, in UTF-8."""
MAX_CORRELATION_BYTES: Final = 1 * KIB
"""*protocol*: of the correlation data of a message."""
MAX_CONTROL_DEPTH: Final = 8
"""*protocol*: nesting of a control message."""
MAX_CONTROL_ITEMS: Final = 20_000
"""*protocol*: values in a control message of a client, with keys and containers counted."""
MAX_FIRST_ITEMS: Final = 256
"""*protocol*: the same before the login, and in record 0 of a channel."""
MAX_OPEN_RECORD_BYTES: Final = 8 * KIB
"""*protocol*: record 0 of a channel that a client opens."""
MAX_RELAY_FILTERS: Final = 32
"""*protocol*: filters of a bridge."""
MAX_RELAY_FILTERS_BYTES: Final = 4 * KIB
"""Of all filters of a bridge, with its prefix."""
MAX_RELAY_SOURCES: Final = 64
"""*protocol*: logs whose messages flow into a broker by bridges."""
MAX_RELAY_MARKS: Final = 100_000
"""Links and logs of which a hub remembers how far it has their messages."""

# -- topics, clients, sessions ----------------------------------------------------------------------------------------
MAX_TOPIC_BYTES: Final = 1024
"""*protocol*: of a topic or a filter, in UTF-8."""
MAX_TOPIC_LEVELS: Final = 64
"""*protocol*: of a topic or a filter."""
MAX_STARS: Final = 8
"""*protocol*: levels `*` in one filter; each multiplies the ways in which it can match."""
MAX_CLIENT_NAME_BYTES: Final = 256
"""*protocol*: of a client's, a publisher's or a cursor's name, in UTF-8."""
MAX_FILTERS: Final = 64
"""*protocol*: in one subscription."""
MAX_WILL_BYTES: Final = 64 * KIB
"""*protocol*: of a last will's payload."""
MAX_LOGIN_BYTES: Final = MAX_WILL_BYTES + 8 * KIB
"""*protocol*: of a control message before the login."""
MAX_SECRET_BYTES: Final = 1024
MAX_TOPICS: Final = 200_000
MAX_SESSIONS: Final = 50_000
"""Connected and remembered, together."""
MAX_SUBSCRIPTIONS: Final = 1024
"""Of one client."""
MAX_FILTER_LEVELS: Final = 8192
"""Of all subscriptions of one client together."""
MAX_FILTER_PLACES: Final = 500_000
"""Filters of all subscriptions of all clients; each costs up to a kilobyte with its subscription."""
MAX_FILTER_NODES: Final = 1_000_000
"""Of all clients together, what their filters have in common counted once; each costs about 650 bytes."""
MAX_TOPIC_NODES: Final = 1_000_000
"""Of all topics, what their names have in common counted once; each costs about 330 bytes."""
MAX_RETAINED_BYTES: Final = 64 * MIB
MAX_CLIENT_RETAINED_BYTES: Final = MAX_RETAINED_BYTES // 2
MAX_TOPICS_PER_CLIENT: Final = MAX_TOPICS // 2
"""That one client has created and that still exist."""
MAX_SESSIONS_PER_HOST: Final = MAX_SESSIONS // 2
"""Of clients with a name that they have not proved, connected and remembered together."""
FAILED_LOGINS_PER_NAME: Final = 5.0
FAILED_LOGINS_PER_NAME_S: Final = 0.1
"""Wrong proofs of one name that are checked at once, and further ones per second."""
FAILED_LOGINS_PER_HOST: Final = 30.0
FAILED_LOGINS_PER_HOST_S: Final = 0.5
"""Wrong proofs from one host that are checked at once, and further ones per second: more than a few clients with an
old secret cause, since clients of the same network may share an address."""
MAX_LOGIN_BUCKETS: Final = 10_000
"""Names, and hosts, whose logins are counted."""
SESSION_EXPIRY_S: Final = 3600
"""What a client of ours asks for."""
MAX_SESSION_EXPIRY_S: Final = 7 * 24 * 3600
MAX_GROUPS: Final = 10_000
"""Consumer groups, with and without members."""
GROUP_ACK_S: Final = 30.0
"""A member that acknowledges nothing for this time loses its messages to others that are idle."""
GROUP_EXPIRY_S: Final = MAX_SESSION_EXPIRY_S
"""How long a group of native clients is kept after its last member has left, unless they ask for less."""
GROUP_MEMBER_WINDOW: Final = 4096
"""Messages in flight at one member of a group, at most."""
GROUP_IN_FLIGHT: Final = 65_536
"""Messages in flight at all members of a group."""
GROUP_QUEUE_BYTES: Final = 256 * KIB
"""Messages of a group that were read and wait for a member; a longer batch may be alone."""
GROUP_STORED_RANGES: Final = 1000
"""Ranges of offsets that are stored with the position of a group."""
PUBLISHER_EXPIRY_S: Final = 7 * 24 * 3600
"""The time without a message after which the sequence of a QoS 2 publisher is forgotten."""
MAX_PUBLISHERS_REMEMBERED: Final = 200_000
"""The longest silent ones beyond it are forgotten."""
RING_BYTES: Final = 64 * MIB
"""The log of a broker without a data folder."""
HOLD_BACK_S: Final = 10.0
"""How long publishers wait for a connected subscriber that the ring would overrun; then it misses messages."""
CLIENT_WINDOW_BYTES: Final = 4 * MIB
"""What is under way to one client, beyond what its application has taken."""
MAX_LABELS: Final = 16_384
"""On one channel; then all are cleared and sent again."""
REQUESTS_PER_S: Final = 2000
"""Control messages of one client; a burst of a few seconds' worth is taken, then the connection is closed."""
SYS_INTERVAL_S: Final = 10.0
NAME_PING_S: Final = 3.0
"""How long a client has to answer when another client claims its name."""
LOGIN_TIMEOUT_S: Final = 10.0
MAX_TIMEOUT_S: Final = 1e9
"""Of a call, about 30 years; calls without a time limit have None. Threads of Python cannot wait for much longer."""

# -- work -------------------------------------------------------------------------------------------------------------
MAX_KIND_BYTES: Final = 256
"""*protocol*: of the name of a kind of work, in UTF-8."""
MAX_KINDS: Final = 64
"""*protocol*: that one worker volunteers for."""
MAX_JOB_KEY_BYTES: Final = 64
"""*protocol*: of a controller's own word for a job, in UTF-8."""
MAX_JOB_PAYLOAD_BYTES: Final = 1 * MIB
"""*protocol*: of a job's payload or a task's result. Larger things travel as files, and the job names them."""
MAX_GROUP: Final = 1024
"""*protocol*: submissions, outcomes and so on in one record."""
MAX_WORK_HEAD_BYTES: Final = MAX_CONTROL_RECORD_BYTES
"""*protocol*: of a group's head."""
MAX_WORK_ITEMS: Final = 28 * MAX_GROUP
"""*protocol*: values in the head of a client's group, with keys and containers counted."""
MAX_WORK_RECORD_BYTES: Final = 4 + MAX_WORK_HEAD_BYTES + MAX_JOB_PAYLOAD_BYTES
"""*protocol*: of a group; the payloads in it have at most MAX_JOB_PAYLOAD_BYTES together."""
WORK_WINDOW_BYTES: Final = 1 * MIB
"""What of work is under way from a broker to one client, beyond one record."""
MAX_TASKS_OF_JOB: Final = 10_000
"""*protocol*: workers that one job may ask for."""
MAX_CAPACITY: Final = 4096
"""*protocol*: tasks that a worker has at once. Their leases fit a control message."""
MAX_WATCHED_AT_ONCE: Final = 1024
"""*protocol*: jobs in one request."""
MAX_PRIORITY: Final = 100
"""*protocol*: of a job, above and below 0."""
MAX_RETRIES: Final = 1000
"""*protocol*: of a task that failed."""
MAX_RETRY_DELAY_S: Final = 300.0
"""The pause between two attempts doubles up to this."""
MAX_JOB_TIME_MS: Final = 366 * 24 * 3600 * 1000
"""*protocol*: of a delay, a deadline, a time limit."""
MAX_LOSSES: Final = 20
"""A task has failed when this many workers were lost while they had it: the task may be the cause."""
MAX_JOBS: Final = 100_000
"""That have not ended."""
MAX_TASKS: Final = 200_000
MAX_JOBS_BYTES: Final = 256 * MIB
"""Payloads and results of all jobs; ended ones make room first."""
MAX_SUBMITTED_BYTES: Final = MAX_JOBS_BYTES // 4 * 3
"""Of these, what jobs that have not ended may have when another is submitted: the rest is for results."""
MAX_HAD: Final = 8
"""Names that a task remembers of those who had it, the last ones."""
MAX_BLOCKED_LINES: Final = 128
"""Groups of jobs of one kind that wait for busy workers. Further ones go to any free worker."""
PATIENCE_S: Final = 10.0
"""The minimum time, besides a lease, that a task waits for a busy worker that has not had its job."""
RETURN_PAUSE_S: Final = 1.0
"""What a task waits that was handed back twice in a row; it doubles ..."""
MAX_RETURN_PAUSE_S: Final = 60.0
"""... up to this. A worker that had the task for this long is not counted as handing it back."""
WEIGHED_CAPACITY: Final = 64
"""More capacity does not bring more tasks while others have nothing to do."""
MAX_DUE_AT_ONCE: Final = 2000
"""Times of jobs, tasks and workers that are seen to in one turn. The next turn follows at once."""
LEASE_S: Final = 30.0
"""A worker that reports nothing for this time loses its tasks."""
RESTART_GRACE_S: Final = 60.0
"""The minimum time for workers to reconnect after a restart of the broker."""
SETTLE_S: Final = 1.0
"""The additional time that a job waits for more volunteers after its first one."""
JOB_KEEP_S: Final = 3600.0
"""How long an ended job is remembered."""

assert BASE_DATAGRAM_BYTES <= MAX_DATAGRAM_BYTES <= LARGEST_DATAGRAM_BYTES
assert MAX_DATAGRAM_BYTES <= MAX_TRAIN_BYTES <= 65_507
assert MAX_MESSAGE_BYTES < MAX_RECORD_BYTES <= LARGEST_RECORD_BYTES
assert CHANNEL_WINDOW_BYTES <= CONNECTION_WINDOW_BYTES
assert MAX_CONTROL_RECORD_BYTES + RECORD_COST_BYTES <= CONTROL_WINDOW_BYTES
assert MAX_HANDSHAKE_APPLICATION_BYTES < BASE_DATAGRAM_BYTES - 300
assert KEEP_ALIVE_S * 2 < IDLE_TIMEOUT_S
assert MAX_ACK_DELAY_S < INITIAL_ROUND_TRIP_S
assert HANDSHAKE_TIMEOUT_S < COOKIE_LIFETIME_S
assert CONNECT_COST <= HANDSHAKE_COST_A_TURN
assert 4 * MAX_HANDSHAKE_RETRY_S < HANDSHAKE_STALE_S < HANDSHAKE_TIMEOUT_S
assert MAX_UNADMITTED_PER_HOST <= MAX_LOGINS_AT_ONCE
assert PACKET_GAP_THRESHOLD < MAX_PACKET_GAP_THRESHOLD
assert 9 + MAX_ACK_RANGES * 8 < BASE_DATAGRAM_BYTES - 100
assert CLIENT_WINDOW_BYTES <= SEND_BUFFER_BYTES
assert MAX_TOPICS < MAX_TOPIC_NODES
assert MAX_WILL_BYTES < MAX_CONTROL_RECORD_BYTES
assert (MAX_WILL_BYTES + 4 * KIB) * (BASE_DATAGRAM_BYTES + PIECE_COST_BYTES) // BASE_DATAGRAM_BYTES < UNADMITTED_BYTES
assert 2 * MAX_HEADERS + 16 < MAX_EXTENSION_ITEMS
assert LOGIN_GRACE_S < LOGIN_TIMEOUT_S
assert MAX_FILTERS * MAX_TOPIC_BYTES < MAX_CONTROL_RECORD_BYTES
assert MAX_WORK_RECORD_BYTES <= MAX_RECORD_BYTES
assert MAX_KIND_BYTES + len("$jobs/") <= MAX_TOPIC_BYTES
assert MAX_CAPACITY * 24 + MAX_KINDS * (MAX_KIND_BYTES + 4) < MAX_CONTROL_RECORD_BYTES
assert MAX_CAPACITY * 4 + MAX_KINDS + MAX_FIRST_ITEMS < MAX_CONTROL_ITEMS, "all leases of a worker"
assert MAX_WATCHED_AT_ONCE + MAX_FILTERS + MAX_FIRST_ITEMS < MAX_CONTROL_ITEMS
assert MAX_LOGIN_BYTES < MAX_CONTROL_RECORD_BYTES
assert MAX_RELAY_FILTERS_BYTES + 17 * MAX_RELAY_SOURCES + 16 * 24 + 256 < MAX_OPEN_RECORD_BYTES
assert MAX_RELAY_FILTERS + MAX_RELAY_SOURCES + 3 * 16 + 16 < MAX_FIRST_ITEMS
assert MAX_WATCHED_AT_ONCE * 9 < MAX_CONTROL_RECORD_BYTES
assert LEASE_S >= IDLE_TIMEOUT_S, "a worker whose connection is being missed still has its tasks"
