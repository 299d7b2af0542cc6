-- Made from ../sqlite by a test of migrations.rs; don't edit.
-- What came of each service's parameters when they were resolved last. Values are in none of these tables.
CREATE TABLE service_parameters (
    service_uid TEXT COLLATE "C"   NOT NULL PRIMARY KEY,
    -- What of the service and its cluster they were resolved for.
    stamp       TEXT COLLATE "C"   NOT NULL,
    -- MAC of the document; empty where there is none to send.
    mac         TEXT COLLATE "C"   NOT NULL,
    -- What is wrong with them; empty where nothing is.
    problem     TEXT COLLATE "C"   NOT NULL,
    -- How often the MAC has become another one.
    turn        BIGINT NOT NULL,
    -- Counts changes of what the service is handed that came since: one that comes while they are resolved is not lost.
    marks       BIGINT NOT NULL
);

-- Which services are handed which keys of which objects. The object or the key may not exist yet.
CREATE TABLE parameter_keys (
    service_uid TEXT COLLATE "C" NOT NULL,
    -- Of the object.
    kind        TEXT COLLATE "C" NOT NULL,
    namespace   TEXT COLLATE "C" NOT NULL,
    name        TEXT COLLATE "C" NOT NULL,
    -- Empty: any.
    key         TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (service_uid, kind, namespace, name, key)
);
CREATE INDEX parameter_keys_object ON parameter_keys (kind, namespace, name, key);
