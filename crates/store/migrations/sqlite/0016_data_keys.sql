-- Keys that sealed rows are sealed with, each sealed itself with the hub's seal key. `sealed` of a row is the number of one of them,
-- or 0. The largest number seals what is written.
CREATE TABLE data_keys (
    number  SMALLINT NOT NULL PRIMARY KEY,
    -- Seconds since 1970.
    created BIGINT   NOT NULL,
    wrapped BLOB     NOT NULL
);

-- What was read last of backends of secrets, in use while they are away. `id` is a digest of backend and place.
CREATE TABLE kept_values (
    id     TEXT     NOT NULL PRIMARY KEY,
    sealed SMALLINT NOT NULL,
    -- When it was read. Seconds since 1970.
    read   BIGINT   NOT NULL,
    value  BLOB     NOT NULL
);
