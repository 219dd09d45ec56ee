-- The third version: epochs (godwit.wire.epochs). Each row is one run of a broker that appended to this log, and is
-- written in the transaction of its first message.
CREATE TABLE epochs (
    first_offset INTEGER PRIMARY KEY,
    id BLOB NOT NULL,
    begun_us INTEGER NOT NULL,
    seal INTEGER NOT NULL
) STRICT;
