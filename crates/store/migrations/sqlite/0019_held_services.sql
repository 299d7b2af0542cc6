-- Services of no set whose spec was edited while there are change windows, and services that one of these holds.
CREATE TABLE held_services (
    service_uid   TEXT   NOT NULL PRIMARY KEY,
    -- JSON: the spec that counts until the service's own may; empty: that counts.
    spec          TEXT   NOT NULL,
    -- The change window that holds it, as namespace/name; empty: it is to be looked at.
    change_window TEXT   NOT NULL,
    -- When it may be open again, in seconds since 1970; 0: nobody knows.
    until         BIGINT NOT NULL
);
