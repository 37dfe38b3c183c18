-- A database that the release before 0032 made and worked on: dumped, never edited.
BEGIN TRANSACTION;
CREATE TABLE audit (
	seq BIGINT NOT NULL, 
	at DATETIME NOT NULL, 
	actor TEXT, 
	action TEXT NOT NULL, 
	subject TEXT NOT NULL, 
	details TEXT NOT NULL, 
	previous TEXT NOT NULL, 
	hash TEXT NOT NULL, 
	CONSTRAINT pk_audit PRIMARY KEY (seq), 
	CONSTRAINT ck_audit_seq CHECK (seq >= 1)
);
INSERT INTO "audit" VALUES(1,'2026-01-01 00:16:40.000000',NULL,'acted','thing:0','{"n":0}','0000000000000000000000000000000000000000000000000000000000000000','2491f22be6c7ad7a08cfdd1a957a93ba58a4a5ac2b5cc80abf0bbce161f8e62e');
INSERT INTO "audit" VALUES(2,'2026-01-01 00:16:40.000000',NULL,'acted','thing:1','{"n":1}','2491f22be6c7ad7a08cfdd1a957a93ba58a4a5ac2b5cc80abf0bbce161f8e62e','9ac43c41633a0c0a9e05120a9af658076346fb62917e522b9e57eabd310c907a');
INSERT INTO "audit" VALUES(3,'2026-01-01 00:16:40.000000',NULL,'acted','thing:2','{"n":2}','9ac43c41633a0c0a9e05120a9af658076346fb62917e522b9e57eabd310c907a','dec38731b301386a0b5dff94b549c2e0180196e134c119f50f5a89b1814176b8');
CREATE TABLE audit_head (
	id BIGINT NOT NULL, 
	seq BIGINT NOT NULL, 
	hash TEXT NOT NULL, 
	CONSTRAINT pk_audit_head PRIMARY KEY (id), 
	CONSTRAINT ck_audit_head_one CHECK (id = 1)
);
INSERT INTO "audit_head" VALUES(1,3,'dec38731b301386a0b5dff94b549c2e0180196e134c119f50f5a89b1814176b8');
CREATE TABLE blob_chunks (
	run TEXT NOT NULL, 
	digest TEXT NOT NULL, 
	n BIGINT NOT NULL, 
	data BLOB NOT NULL, 
	CONSTRAINT pk_blob_chunks PRIMARY KEY (run, digest, n), 
	CONSTRAINT ck_blob_chunks_n CHECK (n >= 0), 
	CONSTRAINT fk_blob_chunks_run FOREIGN KEY(run, digest) REFERENCES blobs (run, digest) ON DELETE CASCADE
);
CREATE TABLE blobs (
	run TEXT NOT NULL, 
	digest TEXT NOT NULL, 
	actor TEXT NOT NULL, 
	size BIGINT NOT NULL, 
	held BIGINT NOT NULL, 
	made TEXT NOT NULL, 
	checked BOOLEAN NOT NULL, 
	CONSTRAINT pk_blobs PRIMARY KEY (run, digest), 
	CONSTRAINT ck_blobs_checked CHECK (NOT checked OR held = size), 
	CONSTRAINT ck_blobs_held CHECK (held <= size), 
	CONSTRAINT fk_blobs_actor FOREIGN KEY(actor) REFERENCES users (id), 
	CONSTRAINT fk_blobs_run FOREIGN KEY(run) REFERENCES runs (id)
);
CREATE TABLE boxes (
	id TEXT NOT NULL, 
	tenant TEXT NOT NULL, 
	user TEXT NOT NULL, 
	kind TEXT NOT NULL, 
	driver TEXT NOT NULL, 
	desired TEXT NOT NULL, 
	observed TEXT NOT NULL, 
	uid BIGINT NOT NULL, 
	identity TEXT, 
	limits TEXT NOT NULL, 
	image TEXT NOT NULL, 
	generation BIGINT NOT NULL, 
	created_at DATETIME NOT NULL, 
	started_at DATETIME, 
	last_active_at DATETIME, 
	removed_at DATETIME, 
	CONSTRAINT pk_boxes PRIMARY KEY (id), 
	CONSTRAINT ck_boxes_desired CHECK (desired IN ('running', 'stopped', 'removed')), 
	CONSTRAINT ck_boxes_identity CHECK (identity IS NULL OR observed = 'running'), 
	CONSTRAINT ck_boxes_kind CHECK (kind IN ('home', 'run', 'skill', 'session', 'scratch', 'probe')), 
	CONSTRAINT ck_boxes_observed CHECK (observed IN ('absent', 'stopped', 'starting', 'running', 'lost')), 
	CONSTRAINT ck_boxes_removed CHECK (removed_at IS NULL OR desired = 'removed'), 
	CONSTRAINT ck_boxes_uid CHECK (uid >= 0), 
	CONSTRAINT fk_boxes_tenant FOREIGN KEY(tenant) REFERENCES tenants (id), 
	CONSTRAINT fk_boxes_user FOREIGN KEY(user) REFERENCES users (id)
);
CREATE TABLE checkpoints (
	run TEXT NOT NULL, 
	boundary TEXT NOT NULL, 
	step BIGINT NOT NULL, 
	cursor BIGINT NOT NULL, 
	state TEXT NOT NULL, 
	blobs TEXT NOT NULL, 
	created_at DATETIME NOT NULL, 
	CONSTRAINT pk_checkpoints PRIMARY KEY (run), 
	CONSTRAINT fk_checkpoints_run FOREIGN KEY(run) REFERENCES runs (id)
);
INSERT INTO "checkpoints" VALUES('run_222222222e2222222222','before_model',1,12,'state','[]','2026-01-01 00:16:40.000000');
CREATE TABLE events (
	thread TEXT NOT NULL, 
	cursor BIGINT NOT NULL, 
	kind TEXT NOT NULL, 
	actor TEXT, 
	turn TEXT, 
	run TEXT, 
	body TEXT NOT NULL, 
	created_at DATETIME NOT NULL, 
	CONSTRAINT pk_events PRIMARY KEY (thread, cursor), 
	CONSTRAINT ck_events_cursor CHECK (cursor >= 1), 
	CONSTRAINT fk_events_thread FOREIGN KEY(thread) REFERENCES threads (id)
);
INSERT INTO "events" VALUES('thr_22222222252222222222',1,'message','usr_22222222232222222222','trn_22222222272222222222',NULL,'{"author":"alice","text":"hello","message":"msg_222222222b2222222222"}','2026-01-01 00:16:40.000000');
INSERT INTO "events" VALUES('thr_22222222252222222222',2,'run.queued','usr_22222222232222222222','trn_22222222272222222222','run_222222222a2222222222','{}','2026-01-01 00:16:40.000000');
INSERT INTO "events" VALUES('thr_22222222252222222222',3,'run.started','usr_22222222232222222222','trn_22222222272222222222','run_222222222a2222222222','{"attempt":1}','2026-01-01 00:16:40.000000');
INSERT INTO "events" VALUES('thr_22222222252222222222',4,'step.begun','usr_22222222232222222222','trn_22222222272222222222','run_222222222a2222222222','{"n":1,"tool":"shell","effect":"local"}','2026-01-01 00:16:40.000000');
INSERT INTO "events" VALUES('thr_22222222252222222222',5,'step.ended','usr_22222222232222222222','trn_22222222272222222222','run_222222222a2222222222','{"n":1,"tool":"shell","effect":"local","ok":true}','2026-01-01 00:16:40.000000');
INSERT INTO "events" VALUES('thr_22222222252222222222',6,'reply','usr_22222222232222222222','trn_22222222272222222222','run_222222222a2222222222','{"author":"agent","text":"done","message":"msg_222222222c2222222222"}','2026-01-01 00:16:40.000000');
INSERT INTO "events" VALUES('thr_22222222252222222222',7,'run.ended','usr_22222222232222222222','trn_22222222272222222222','run_222222222a2222222222','{"state":"completed","reason":"","message":""}','2026-01-01 00:16:40.000000');
INSERT INTO "events" VALUES('thr_22222222252222222222',8,'message','usr_22222222242222222222','trn_222222222d2222222222',NULL,'{"author":"bob","text":"and again","message":"msg_222222222f2222222222"}','2026-01-01 00:16:40.000000');
INSERT INTO "events" VALUES('thr_22222222252222222222',9,'run.queued','usr_22222222242222222222','trn_222222222d2222222222','run_222222222e2222222222','{}','2026-01-01 00:16:40.000000');
INSERT INTO "events" VALUES('thr_22222222252222222222',10,'run.started','usr_22222222242222222222','trn_222222222d2222222222','run_222222222e2222222222','{"attempt":1}','2026-01-01 00:16:40.000000');
INSERT INTO "events" VALUES('thr_22222222252222222222',11,'step.begun','usr_22222222242222222222','trn_222222222d2222222222','run_222222222e2222222222','{"n":1,"tool":"shell","effect":"local"}','2026-01-01 00:16:40.000000');
INSERT INTO "events" VALUES('thr_22222222252222222222',12,'step.ended','usr_22222222242222222222','trn_222222222d2222222222','run_222222222e2222222222','{"n":1,"tool":"shell","effect":"local","ok":true}','2026-01-01 00:16:40.000000');
INSERT INTO "events" VALUES('thr_22222222252222222222',13,'step.begun','usr_22222222242222222222','trn_222222222d2222222222','run_222222222e2222222222','{"n":2,"tool":"shell","effect":"local"}','2026-01-01 00:16:40.000000');
INSERT INTO "events" VALUES('thr_22222222252222222222',14,'message','usr_22222222232222222222','trn_222222222g2222222222',NULL,'{"author":"alice","text":"waits","message":"msg_222222222i2222222222"}','2026-01-01 00:16:40.000000');
INSERT INTO "events" VALUES('thr_22222222252222222222',15,'run.queued','usr_22222222232222222222','trn_222222222g2222222222','run_222222222h2222222222','{}','2026-01-01 00:16:40.000000');
CREATE TABLE glass (
	thread TEXT NOT NULL, 
	via TEXT NOT NULL, 
	reason TEXT NOT NULL, 
	opened_at DATETIME NOT NULL, 
	closes_at DATETIME NOT NULL, 
	CONSTRAINT pk_glass PRIMARY KEY (thread, via), 
	CONSTRAINT fk_glass_thread FOREIGN KEY(thread) REFERENCES threads (id)
);
CREATE TABLE idempotency (
	tenant TEXT NOT NULL, 
	actor TEXT NOT NULL, 
	"key" TEXT NOT NULL, 
	body_hash TEXT NOT NULL, 
	message TEXT NOT NULL, 
	created_at DATETIME NOT NULL, 
	CONSTRAINT pk_idempotency PRIMARY KEY (tenant, actor, "key"), 
	CONSTRAINT fk_idempotency_actor FOREIGN KEY(actor) REFERENCES users (id), 
	CONSTRAINT fk_idempotency_message FOREIGN KEY(message) REFERENCES messages (id), 
	CONSTRAINT fk_idempotency_tenant FOREIGN KEY(tenant) REFERENCES tenants (id)
);
INSERT INTO "idempotency" VALUES('ten_22222222222222222222','usr_22222222232222222222','key-1','7f44872893422cb83317c51f1aef722e0cfb17d41959cc9bea1c06971684d0bf','msg_222222222b2222222222','2026-01-01 00:16:40.000000');
CREATE TABLE members (
	thread TEXT NOT NULL, 
	user TEXT NOT NULL, 
	CONSTRAINT pk_members PRIMARY KEY (thread, user), 
	CONSTRAINT fk_members_thread FOREIGN KEY(thread) REFERENCES threads (id), 
	CONSTRAINT fk_members_user FOREIGN KEY(user) REFERENCES users (id)
);
INSERT INTO "members" VALUES('thr_22222222252222222222','usr_22222222232222222222');
INSERT INTO "members" VALUES('thr_22222222252222222222','usr_22222222242222222222');
CREATE TABLE messages (
	id TEXT NOT NULL, 
	thread TEXT NOT NULL, 
	turn TEXT NOT NULL, 
	author TEXT, 
	author_name TEXT NOT NULL, 
	text TEXT NOT NULL, 
	cursor BIGINT NOT NULL, 
	attachments TEXT, 
	steer BOOLEAN NOT NULL, 
	created_at DATETIME NOT NULL, 
	CONSTRAINT pk_messages PRIMARY KEY (id), 
	CONSTRAINT ck_messages_steer CHECK (NOT steer OR author IS NOT NULL), 
	CONSTRAINT fk_messages_author FOREIGN KEY(author) REFERENCES users (id), 
	CONSTRAINT fk_messages_thread FOREIGN KEY(thread) REFERENCES threads (id)
);
INSERT INTO "messages" VALUES('msg_222222222b2222222222','thr_22222222252222222222','trn_22222222272222222222','usr_22222222232222222222','alice','hello',1,NULL,0,'2026-01-01 00:16:40.000000');
INSERT INTO "messages" VALUES('msg_222222222c2222222222','thr_22222222252222222222','trn_22222222272222222222',NULL,'agent','done',6,NULL,0,'2026-01-01 00:16:40.000000');
INSERT INTO "messages" VALUES('msg_222222222f2222222222','thr_22222222252222222222','trn_222222222d2222222222','usr_22222222242222222222','bob','and again',8,NULL,0,'2026-01-01 00:16:40.000000');
INSERT INTO "messages" VALUES('msg_222222222i2222222222','thr_22222222252222222222','trn_222222222g2222222222','usr_22222222232222222222','alice','waits',14,NULL,0,'2026-01-01 00:16:40.000000');
CREATE TABLE ringfence_schema (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT ringfence_schema_pkc PRIMARY KEY (version_num)
);
INSERT INTO "ringfence_schema" VALUES('0001');
CREATE TABLE runs (
	id TEXT NOT NULL, 
	turn TEXT NOT NULL, 
	tenant TEXT NOT NULL, 
	thread TEXT NOT NULL, 
	actor TEXT NOT NULL, 
	lane TEXT NOT NULL, 
	position BIGINT NOT NULL, 
	box TEXT, 
	state TEXT NOT NULL, 
	reason TEXT NOT NULL, 
	epoch BIGINT NOT NULL, 
	attempts BIGINT NOT NULL, 
	worker TEXT, 
	lease_until DATETIME, 
	not_before DATETIME, 
	token_hash TEXT NOT NULL, 
	cancel_requested BOOLEAN NOT NULL, 
	guest_digest TEXT, 
	worked DOUBLE NOT NULL, 
	created_at DATETIME NOT NULL, 
	started_at DATETIME, 
	ended_at DATETIME, 
	CONSTRAINT pk_runs PRIMARY KEY (id), 
	CONSTRAINT ck_runs_lease CHECK ((state = 'running') = (lease_until IS NOT NULL)), 
	CONSTRAINT ck_runs_worker CHECK ((state = 'running') = (worker IS NOT NULL)), 
	CONSTRAINT ck_runs_ended CHECK ((state IN ('completed', 'failed', 'cancelled')) = (ended_at IS NOT NULL)), 
	CONSTRAINT ck_runs_state CHECK (state IN ('queued', 'running', 'parked', 'completed', 'failed', 'cancelled')), 
	CONSTRAINT ck_runs_epoch CHECK (epoch >= attempts AND attempts >= 0), 
	CONSTRAINT ck_runs_worked CHECK (worked >= 0), 
	CONSTRAINT fk_runs_actor FOREIGN KEY(actor) REFERENCES users (id), 
	CONSTRAINT fk_runs_box FOREIGN KEY(box) REFERENCES boxes (id), 
	CONSTRAINT fk_runs_tenant FOREIGN KEY(tenant) REFERENCES tenants (id), 
	CONSTRAINT fk_runs_thread FOREIGN KEY(thread) REFERENCES threads (id), 
	CONSTRAINT fk_runs_turn FOREIGN KEY(turn) REFERENCES turns (id)
);
INSERT INTO "runs" VALUES('run_222222222a2222222222','trn_22222222272222222222','ten_22222222222222222222','thr_22222222252222222222','usr_22222222232222222222','thr_22222222252222222222',1,NULL,'completed','',1,1,NULL,NULL,NULL,'hash of run_222222222a2222222222',0,NULL,0.0,'2026-01-01 00:16:40.000000','2026-01-01 00:16:40.000000','2026-01-01 00:16:40.000000');
INSERT INTO "runs" VALUES('run_222222222e2222222222','trn_222222222d2222222222','ten_22222222222222222222','thr_22222222252222222222','usr_22222222242222222222','thr_22222222252222222222',8,NULL,'running','',1,1,'w1','2026-01-01 00:17:10.000000',NULL,'hash of run_222222222e2222222222',0,NULL,0.0,'2026-01-01 00:16:40.000000','2026-01-01 00:16:40.000000',NULL);
INSERT INTO "runs" VALUES('run_222222222h2222222222','trn_222222222g2222222222','ten_22222222222222222222','thr_22222222252222222222','usr_22222222232222222222','thr_22222222252222222222',14,NULL,'queued','',0,0,NULL,NULL,NULL,'',0,NULL,0.0,'2026-01-01 00:16:40.000000',NULL,NULL);
CREATE TABLE steps (
	run TEXT NOT NULL, 
	n BIGINT NOT NULL, 
	tool TEXT NOT NULL, 
	arguments TEXT NOT NULL, 
	digest TEXT NOT NULL, 
	effect TEXT NOT NULL, 
	state TEXT NOT NULL, 
	result TEXT, 
	begun_at DATETIME NOT NULL, 
	ended_at DATETIME, 
	CONSTRAINT pk_steps PRIMARY KEY (run, n), 
	CONSTRAINT ck_steps_result CHECK ((state = 'begun') = (result IS NULL)), 
	CONSTRAINT ck_steps_effect CHECK (effect IN ('pure', 'idempotent', 'once', 'local')), 
	CONSTRAINT ck_steps_state CHECK (state IN ('begun', 'ended', 'interrupted')), 
	CONSTRAINT ck_steps_n CHECK (n >= 1), 
	CONSTRAINT fk_steps_run FOREIGN KEY(run) REFERENCES runs (id)
);
INSERT INTO "steps" VALUES('run_222222222a2222222222',1,'shell','{"command":"ls"}','06c216103a1cea84bb3d5e855359163226a396a0526a1d012d6089b8f3525a15','local','ended','{"ok":true,"text":"é"}','2026-01-01 00:16:40.000000','2026-01-01 00:16:40.000000');
INSERT INTO "steps" VALUES('run_222222222e2222222222',1,'shell','{"command":"ls"}','06c216103a1cea84bb3d5e855359163226a396a0526a1d012d6089b8f3525a15','local','ended','{"ok":true}','2026-01-01 00:16:40.000000','2026-01-01 00:16:40.000000');
INSERT INTO "steps" VALUES('run_222222222e2222222222',2,'shell','{"command":"ls"}','06c216103a1cea84bb3d5e855359163226a396a0526a1d012d6089b8f3525a15','local','begun',NULL,'2026-01-01 00:16:40.000000',NULL);
CREATE TABLE summaries (
	thread TEXT NOT NULL, 
	actor TEXT NOT NULL, 
	cursor BIGINT NOT NULL, 
	text TEXT NOT NULL, 
	created_at DATETIME NOT NULL, 
	CONSTRAINT pk_summaries PRIMARY KEY (thread, actor), 
	CONSTRAINT ck_summaries_cursor CHECK (cursor >= 1), 
	CONSTRAINT fk_summaries_actor FOREIGN KEY(actor) REFERENCES users (id), 
	CONSTRAINT fk_summaries_thread FOREIGN KEY(thread) REFERENCES threads (id)
);
CREATE TABLE tenants (
	id TEXT NOT NULL, 
	name TEXT NOT NULL, 
	created_at DATETIME NOT NULL, 
	removed_at DATETIME, 
	CONSTRAINT pk_tenants PRIMARY KEY (id)
);
INSERT INTO "tenants" VALUES('ten_22222222222222222222','default','2026-01-01 00:16:40.000000',NULL);
CREATE TABLE threads (
	id TEXT NOT NULL, 
	tenant TEXT NOT NULL, 
	name TEXT NOT NULL, 
	parallel BOOLEAN NOT NULL, 
	cursor BIGINT NOT NULL, 
	created_at DATETIME NOT NULL, 
	removed_at DATETIME, 
	CONSTRAINT pk_threads PRIMARY KEY (id), 
	CONSTRAINT ck_threads_cursor CHECK (cursor >= 0), 
	CONSTRAINT fk_threads_tenant FOREIGN KEY(tenant) REFERENCES tenants (id)
);
INSERT INTO "threads" VALUES('thr_22222222252222222222','ten_22222222222222222222','#team',0,15,'2026-01-01 00:16:40.000000',NULL);
CREATE TABLE tokens (
	id TEXT NOT NULL, 
	user TEXT NOT NULL, 
	secret_hash TEXT NOT NULL, 
	scopes TEXT NOT NULL, 
	note TEXT NOT NULL, 
	created_at DATETIME NOT NULL, 
	expires_at DATETIME, 
	last_used_at DATETIME, 
	removed_at DATETIME, 
	CONSTRAINT pk_tokens PRIMARY KEY (id), 
	CONSTRAINT fk_tokens_user FOREIGN KEY(user) REFERENCES users (id), 
	CONSTRAINT uq_tokens_secret_hash UNIQUE (secret_hash)
);
CREATE TABLE turns (
	id TEXT NOT NULL, 
	thread TEXT NOT NULL, 
	actor TEXT NOT NULL, 
	message TEXT NOT NULL, 
	lane TEXT NOT NULL, 
	state TEXT NOT NULL, 
	reason TEXT NOT NULL, 
	reply TEXT, 
	run TEXT, 
	created_at DATETIME NOT NULL, 
	ended_at DATETIME, 
	CONSTRAINT pk_turns PRIMARY KEY (id), 
	CONSTRAINT ck_turns_state CHECK (state IN ('queued', 'running', 'parked', 'completed', 'failed', 'cancelled')), 
	CONSTRAINT fk_turns_actor FOREIGN KEY(actor) REFERENCES users (id), 
	CONSTRAINT fk_turns_message FOREIGN KEY(message) REFERENCES messages (id), 
	CONSTRAINT fk_turns_thread FOREIGN KEY(thread) REFERENCES threads (id)
);
INSERT INTO "turns" VALUES('trn_22222222272222222222','thr_22222222252222222222','usr_22222222232222222222','msg_222222222b2222222222','thr_22222222252222222222','completed','','done','run_222222222a2222222222','2026-01-01 00:16:40.000000','2026-01-01 00:16:40.000000');
INSERT INTO "turns" VALUES('trn_222222222d2222222222','thr_22222222252222222222','usr_22222222242222222222','msg_222222222f2222222222','thr_22222222252222222222','running','',NULL,'run_222222222e2222222222','2026-01-01 00:16:40.000000',NULL);
INSERT INTO "turns" VALUES('trn_222222222g2222222222','thr_22222222252222222222','usr_22222222232222222222','msg_222222222i2222222222','thr_22222222252222222222','queued','',NULL,'run_222222222h2222222222','2026-01-01 00:16:40.000000',NULL);
CREATE TABLE users (
	id TEXT NOT NULL, 
	tenant TEXT NOT NULL, 
	name TEXT NOT NULL, 
	kind TEXT NOT NULL, 
	owner TEXT, 
	disabled BOOLEAN NOT NULL, 
	created_at DATETIME NOT NULL, 
	removed_at DATETIME, 
	CONSTRAINT pk_users PRIMARY KEY (id), 
	CONSTRAINT ck_users_owner CHECK ((kind = 'person') = (owner IS NULL)), 
	CONSTRAINT ck_users_kind CHECK (kind IN ('person', 'agent', 'project')), 
	CONSTRAINT fk_users_owner FOREIGN KEY(owner) REFERENCES users (id), 
	CONSTRAINT fk_users_tenant FOREIGN KEY(tenant) REFERENCES tenants (id)
);
INSERT INTO "users" VALUES('usr_22222222232222222222','ten_22222222222222222222','alice','person',NULL,0,'2026-01-01 00:16:40.000000',NULL);
INSERT INTO "users" VALUES('usr_22222222242222222222','ten_22222222222222222222','bob','person',NULL,0,'2026-01-01 00:16:40.000000',NULL);
INSERT INTO "users" VALUES('usr_22222222262222222222','ten_22222222222222222222','a-bot','agent','usr_22222222232222222222',0,'2026-01-01 00:16:40.000000',NULL);
CREATE UNIQUE INDEX uq_tenants_live_name ON tenants (name) WHERE removed_at IS NULL;
CREATE UNIQUE INDEX uq_users_live_name ON users (tenant, name) WHERE removed_at IS NULL;
CREATE INDEX ix_tokens_user ON tokens (user);
CREATE INDEX ix_boxes_tenant ON boxes (tenant);
CREATE UNIQUE INDEX uq_boxes_home ON boxes (tenant, user) WHERE kind = 'home' AND desired <> 'removed';
CREATE UNIQUE INDEX uq_threads_live_name ON threads (tenant, name) WHERE removed_at IS NULL;
CREATE INDEX ix_members_user ON members (user);
CREATE UNIQUE INDEX uq_messages_cursor ON messages (thread, cursor);
CREATE INDEX ix_messages_steer ON messages (turn, cursor) WHERE steer;
CREATE INDEX ix_runs_actor ON runs (actor);
CREATE INDEX ix_runs_live ON runs (lane, position) WHERE state IN ('queued', 'running', 'parked');
CREATE INDEX ix_runs_tenant_created_at ON runs (tenant, created_at);
CREATE INDEX ix_runs_turn ON runs (turn);
CREATE UNIQUE INDEX uq_runs_lane ON runs (lane) WHERE state = 'running';
CREATE INDEX ix_steps_begun ON steps (run) WHERE state = 'begun';
CREATE INDEX ix_blobs_actor ON blobs (actor, size);
CREATE INDEX ix_idempotency_created_at ON idempotency (created_at);
COMMIT;
