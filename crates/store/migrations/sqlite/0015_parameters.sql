-- What came of each service's parameters when they were resolved last. Values are in none of these tables.
CREATE TABLE service_parameters (
    service_uid TEXT   NOT NULL PRIMARY KEY,
    -- What of the service and its cluster they were resolved for.
    stamp       TEXT   NOT NULL,
    -- MAC of the document; empty where there is none to send.
    mac         TEXT   NOT NULL,
    -- What is wrong with them; empty where nothing is.
    problem     TEXT   NOT NULL,
    -- How often the MAC has become another one.
    turn        BIGINT NOT NULL,
    -- Counts changes of what the service is handed that came since: one that comes while they are resolved is not lost.
    marks       BIGINT NOT NULL
);

-- Which services are handed which keys of which objects. The object or the key may not exist yet.
CREATE TABLE parameter_keys (
    service_uid TEXT NOT NULL,
    -- Of the object.
    kind        TEXT NOT NULL,
    namespace   TEXT NOT NULL,
    name        TEXT NOT NULL,
    -- Empty: any.
    key         TEXT NOT NULL,
    PRIMARY KEY (service_uid, kind, namespace, name, key)
);
CREATE INDEX parameter_keys_object ON parameter_keys (kind, namespace, name, key);
