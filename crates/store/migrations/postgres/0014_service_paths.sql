-- Made from ../sqlite by a test of migrations.rs; don't edit.
-- Where in a source a change concerns a service: what was found there, or looked for, is what the service's candidate is made of.
-- A commit that touches none of them leaves the candidate as it is. The empty path is all of the source.
CREATE TABLE service_paths (
    service_uid TEXT COLLATE "C" NOT NULL,
    source_uid  TEXT COLLATE "C" NOT NULL,
    path        TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (service_uid, source_uid, path)
);
CREATE INDEX service_paths_path ON service_paths (source_uid, path, service_uid);
INSERT INTO service_paths (service_uid, source_uid, path)
SELECT service_uid, source_uid, '' FROM assignments WHERE source_uid <> '';
INSERT INTO service_paths (service_uid, source_uid, path)
SELECT DISTINCT service_sources.service_uid, service_sources.source_uid, '' FROM service_sources
WHERE NOT EXISTS (SELECT 1 FROM service_paths WHERE service_paths.service_uid = service_sources.service_uid
AND service_paths.source_uid = service_sources.source_uid);
