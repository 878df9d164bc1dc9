-- What akka-persistence-r2dbc 1.1.0 and akka-projection-r2dbc 1.4.0 expect of a database, by the names that they use.
CREATE TABLE event_journal (
    slice INT NOT NULL, entity_type VARCHAR(255) NOT NULL, persistence_id VARCHAR(255) NOT NULL, seq_nr BIGINT NOT NULL,
    db_timestamp TIMESTAMPTZ NOT NULL, event_ser_id INTEGER NOT NULL, event_ser_manifest VARCHAR(255) NOT NULL,
    event_payload BYTEA NOT NULL, deleted BOOLEAN NOT NULL DEFAULT FALSE, writer VARCHAR(255) NOT NULL,
    adapter_manifest VARCHAR(255), tags TEXT ARRAY, meta_ser_id INTEGER, meta_ser_manifest VARCHAR(255), meta_payload BYTEA,
    PRIMARY KEY (persistence_id, seq_nr)
);
CREATE INDEX event_journal_slice_idx ON event_journal (slice, entity_type, db_timestamp, seq_nr);
CREATE TABLE snapshot (
    slice INT NOT NULL, entity_type VARCHAR(255) NOT NULL, persistence_id VARCHAR(255) NOT NULL, seq_nr BIGINT NOT NULL,
    db_timestamp TIMESTAMPTZ, write_timestamp BIGINT NOT NULL, ser_id INTEGER NOT NULL, ser_manifest VARCHAR(255) NOT NULL,
    snapshot BYTEA NOT NULL, meta_ser_id INTEGER, meta_ser_manifest VARCHAR(255), meta_payload BYTEA,
    PRIMARY KEY (persistence_id)
);
CREATE TABLE akka_projection_offset_store (
    projection_name VARCHAR(255) NOT NULL, projection_key VARCHAR(255) NOT NULL, current_offset VARCHAR(255) NOT NULL,
    manifest VARCHAR(32) NOT NULL, mergeable BOOLEAN NOT NULL, last_updated BIGINT NOT NULL,
    PRIMARY KEY (projection_name, projection_key)
);
CREATE TABLE akka_projection_timestamp_offset_store (
    projection_name VARCHAR(255) NOT NULL, projection_key VARCHAR(255) NOT NULL, slice INT NOT NULL,
    persistence_id VARCHAR(255) NOT NULL, seq_nr BIGINT NOT NULL, timestamp_offset TIMESTAMPTZ NOT NULL,
    timestamp_consumed TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (slice, projection_name, timestamp_offset, persistence_id, seq_nr)
);
CREATE TABLE akka_projection_management (
    projection_name VARCHAR(255) NOT NULL, projection_key VARCHAR(255) NOT NULL, paused BOOLEAN NOT NULL,
    last_updated BIGINT NOT NULL,
    PRIMARY KEY (projection_name, projection_key)
);
