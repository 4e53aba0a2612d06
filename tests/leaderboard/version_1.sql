PRAGMA application_id = 1165381445;
PRAGMA user_version = 1;
BEGIN TRANSACTION;
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('v3.2.0.a');
CREATE TABLE evo_champions (
	id INTEGER NOT NULL, 
	scope VARCHAR NOT NULL, 
	evaluation_id INTEGER NOT NULL, 
	champion_id INTEGER, 
	accepted BOOLEAN NOT NULL, 
	duel_json TEXT, 
	created_at DATETIME NOT NULL, 
	PRIMARY KEY (id), 
	FOREIGN KEY(evaluation_id) REFERENCES evo_evaluations (id), 
	FOREIGN KEY(champion_id) REFERENCES evo_evaluations (id)
);
INSERT INTO "evo_champions" VALUES(1,'1x8x512x64-fp16|cuda|Synthetic GPU|sm_89|measured|graph-warm',1,NULL,1,NULL,'2026-11-21 10:49:21.115102');
CREATE TABLE evo_claims (
	study_id INTEGER NOT NULL, 
	config_key VARCHAR NOT NULL, 
	config_json TEXT NOT NULL, 
	owner VARCHAR NOT NULL, 
	created_at DATETIME NOT NULL, 
	PRIMARY KEY (study_id, config_key), 
	FOREIGN KEY(study_id) REFERENCES evo_studies (id)
);
INSERT INTO "evo_claims" VALUES(2,'10820b8998266b5c','{"CTAS": 1, "LAYOUT": "plain", "PAD": 0, "STAGES": 1, "TILE_M": 16, "TILE_N": 16, "UNROLL": true, "WARPS": 1}','elsewhere:1:1:1','2026-11-21 10:49:21.195400');
INSERT INTO "evo_claims" VALUES(2,'788f991225458dde','{"CTAS": 2, "LAYOUT": "plain", "PAD": 0, "STAGES": 1, "TILE_M": 16, "TILE_N": 16, "UNROLL": true, "WARPS": 1}','elsewhere:1:1:1','2026-11-21 10:49:21.196121');
CREATE TABLE evo_evaluations (
	id INTEGER NOT NULL, 
	study_id INTEGER NOT NULL, 
	config_key VARCHAR NOT NULL, 
	config_json TEXT NOT NULL, 
	status VARCHAR NOT NULL, 
	reason TEXT NOT NULL, 
	source_hash VARCHAR NOT NULL, 
	code_hash VARCHAR NOT NULL, 
	template_hash VARCHAR NOT NULL, 
	duplicate_of VARCHAR NOT NULL, 
	registers INTEGER, 
	spill_bytes INTEGER, 
	stack_bytes INTEGER, 
	static_smem_bytes INTEGER, 
	dynamic_smem_bytes INTEGER, 
	threads INTEGER, 
	parity_passed BOOLEAN, 
	max_error FLOAT, 
	tolerance FLOAT, 
	relative_l2 FLOAT, 
	parity_cases INTEGER, 
	worst_case VARCHAR, 
	parity_reason TEXT, 
	median_us FLOAT, 
	low_us FLOAT, 
	high_us FLOAT, 
	predicted BOOLEAN, 
	method VARCHAR, 
	samples_json TEXT, 
	baseline_us FLOAT, 
	baseline VARCHAR, 
	stage_seconds_json TEXT NOT NULL, 
	trial_number INTEGER, 
	driver VARCHAR NOT NULL, 
	nvrtc VARCHAR NOT NULL, 
	created_at DATETIME NOT NULL, 
	PRIMARY KEY (id), 
	UNIQUE (study_id, config_key), 
	FOREIGN KEY(study_id) REFERENCES evo_studies (id)
);
INSERT INTO "evo_evaluations" VALUES(1,1,'d5977f721d49538c','{"CTAS": 1, "LAYOUT": "plain", "PAD": 0, "STAGES": 3, "TILE_M": 64, "TILE_N": 64, "UNROLL": false, "WARPS": 4}','ok','','75de43f95690f28c','code-d5977f721d49538c','t0','',96,0,0,0,32768,128,1,0.0004,0.001,0.0002,6,'mission','',7.2540775892809854497e+00,7.18153681338817584389e+00,7.32661836517379505551e+00,0,'graph-warm','[7.2540775892809854, 7.2540775892809854]',1.45081551785619708994e+01,'flash','{"compile": 0.5, "bench": 0.25}',1,'13.0','13.0','2026-01-01 00:00:00.000000');
INSERT INTO "evo_evaluations" VALUES(2,1,'9c09317adb16e842','{"CTAS": 2, "LAYOUT": "split", "PAD": 16, "STAGES": 3, "TILE_M": 128, "TILE_N": 64, "UNROLL": false, "WARPS": 1}','ok','','ef7044de3dcc3a3b','code-9c09317adb16e842','t0','',96,0,0,0,32768,128,1,0.0004,0.001,0.0002,6,'mission','',1.38566557718619645102e+01,1.37180892141433439233e+01,1.39952223295805850962e+01,0,'graph-warm','[13.856655771861965, 13.856655771861965]',2.77133115437239290206e+01,'flash','{"compile": 0.5, "bench": 0.25}',0,'13.0','13.0','2026-01-01 00:00:00.000000');
INSERT INTO "evo_evaluations" VALUES(3,1,'9a7c822ce7b00904','{"CTAS": 1, "LAYOUT": "split", "PAD": 8, "STAGES": 1, "TILE_M": 128, "TILE_N": 128, "UNROLL": true, "WARPS": 4}','ok','','d0ee3db3ebb5ed9a','code-9a7c822ce7b00904','t0','',96,0,0,0,32768,128,1,0.0004,0.001,0.0002,6,'mission','',8.10728891950324559445e+00,8.02621603030821262336e+00,8.18836180869827856554e+00,0,'graph-warm','[8.107288919503246, 8.107288919503246]',1.62145778390064911889e+01,'flash','{"compile": 0.5, "bench": 0.25}',2,'13.0','13.0','2026-01-01 00:00:00.000000');
INSERT INTO "evo_evaluations" VALUES(4,1,'607e9cb4ce72a21c','{"CTAS": 1, "LAYOUT": "plain", "PAD": 16, "STAGES": 2, "TILE_M": 64, "TILE_N": 64, "UNROLL": true, "WARPS": 2}','ok','','fe1212cced6cc95a','code-607e9cb4ce72a21c','t0','',96,0,0,0,32768,128,1,0.0004,0.001,0.0002,6,'mission','',7.60287799835975430795e+00,7.52684921837615661388e+00,7.67890677834335200202e+00,0,'graph-warm','[7.602877998359754, 7.602877998359754]',1.52057559967195086159e+01,'flash','{"compile": 0.5, "bench": 0.25}',3,'13.0','13.0','2026-01-01 00:00:00.000000');
CREATE TABLE evo_sources (
	source_hash VARCHAR NOT NULL, 
	text_zlib BLOB NOT NULL, 
	PRIMARY KEY (source_hash)
);
INSERT INTO "evo_sources" VALUES('75de43f95690f28c',X'789CD3D757700E710CB63554F0718CF40F0DB12DC849CCCC53087074B13550080E7174770DB6355608F1F4718DF7B5353381B0FC40AC50BF207F1F1F5BB7C49CE2548570C7A080605B132E005CA815AF');
INSERT INTO "evo_sources" VALUES('ef7044de3dcc3a3b',X'789CD3D757700E710CB63552F0718CF40F0DB12D2EC8C92C51087074B1353453080E7174770DB6355608F1F4718DF7B53534B28030FD6CCD4C1442FD82FC7D7C6CDD12738A5315C21D8302826D0DB90088EC162D');
INSERT INTO "evo_sources" VALUES('d0ee3db3ebb5ed9a',X'789CD3D757700E710CB63554F0718CF40F0DB12D2EC8C92C51087074B1B550080E71747705C98578FAB8C6FBDA1A1A5940987E6066A85F90BF8F8F6D485169AA42B8635040B0AD091700748615E4');
INSERT INTO "evo_sources" VALUES('fe1212cced6cc95a',X'789CD3D757700E710CB63554F0718CF40F0DB12DC849CCCC53087074B1353453080E7174770DB6355208F1F4718DF7B5353381B0FC40AC50BF207F1F1FDB90A2D2548570C7A000A03A2E00597E1598');
CREATE TABLE evo_studies (
	id INTEGER NOT NULL, 
	identity VARCHAR(64) NOT NULL, 
	problem VARCHAR NOT NULL, 
	problem_json TEXT NOT NULL, 
	family VARCHAR NOT NULL, 
	device_kind VARCHAR NOT NULL, 
	device VARCHAR NOT NULL, 
	arch VARCHAR NOT NULL, 
	predicted BOOLEAN NOT NULL, 
	method VARCHAR NOT NULL, 
	strategy VARCHAR NOT NULL, 
	seed INTEGER NOT NULL, 
	space_key VARCHAR NOT NULL, 
	created_at DATETIME NOT NULL, 
	PRIMARY KEY (id), 
	UNIQUE (identity)
);
INSERT INTO "evo_studies" VALUES(1,'3493c50c29fefc73641dfcbef32a87a0ae3c752e275fcbcd66d723728f2a121b','1x8x512x64-fp16','{"batch": 1, "causal": false, "dtype": "fp16", "head_dim": 64, "heads": 8, "kv_heads": 8, "seq_kv": 512, "seq_q": 512}','synthetic','cuda','Synthetic GPU','sm_89',0,'graph-warm','evolution',0,'','2026-11-21 10:49:20.473163');
INSERT INTO "evo_studies" VALUES(2,'337b0cdbd118e814add98bc299a07fef8e5cb361112ebe069f5c046988fb1d08','1x8x512x64-fp16','{"batch": 1, "causal": false, "dtype": "fp16", "head_dim": 64, "heads": 8, "kv_heads": 8, "seq_kv": 512, "seq_q": 512}','synthetic','cuda','Synthetic GPU','sm_89',0,'graph-warm','evolution',1,'','2026-11-21 10:49:21.190599');
CREATE TABLE studies (
	study_id INTEGER NOT NULL, 
	study_name VARCHAR(512) NOT NULL, 
	PRIMARY KEY (study_id)
);
INSERT INTO "studies" VALUES(1,'evoengine-3493c50c29fefc73');
CREATE TABLE study_directions (
	study_direction_id INTEGER NOT NULL, 
	direction VARCHAR(8) NOT NULL, 
	study_id INTEGER NOT NULL, 
	objective INTEGER NOT NULL, 
	PRIMARY KEY (study_direction_id), 
	UNIQUE (study_id, objective), 
	FOREIGN KEY(study_id) REFERENCES studies (study_id)
);
INSERT INTO "study_directions" VALUES(1,'MINIMIZE',1,0);
CREATE TABLE study_system_attributes (
	study_system_attribute_id INTEGER NOT NULL, 
	study_id INTEGER, 
	"key" VARCHAR(512), 
	value_json TEXT, 
	PRIMARY KEY (study_system_attribute_id), 
	UNIQUE (study_id, "key"), 
	FOREIGN KEY(study_id) REFERENCES studies (study_id)
);
CREATE TABLE study_user_attributes (
	study_user_attribute_id INTEGER NOT NULL, 
	study_id INTEGER, 
	"key" VARCHAR(512), 
	value_json TEXT, 
	PRIMARY KEY (study_user_attribute_id), 
	UNIQUE (study_id, "key"), 
	FOREIGN KEY(study_id) REFERENCES studies (study_id)
);
CREATE TABLE trial_heartbeats (
	trial_heartbeat_id INTEGER NOT NULL, 
	trial_id INTEGER NOT NULL, 
	heartbeat DATETIME NOT NULL, 
	PRIMARY KEY (trial_heartbeat_id), 
	UNIQUE (trial_id), 
	FOREIGN KEY(trial_id) REFERENCES trials (trial_id)
);
CREATE TABLE trial_intermediate_values (
	trial_intermediate_value_id INTEGER NOT NULL, 
	trial_id INTEGER NOT NULL, 
	step INTEGER NOT NULL, 
	intermediate_value FLOAT, 
	intermediate_value_type VARCHAR(7) NOT NULL, 
	PRIMARY KEY (trial_intermediate_value_id), 
	UNIQUE (trial_id, step), 
	FOREIGN KEY(trial_id) REFERENCES trials (trial_id)
);
CREATE TABLE trial_params (
	param_id INTEGER NOT NULL, 
	trial_id INTEGER, 
	param_name VARCHAR(512), 
	param_value FLOAT, 
	distribution_json TEXT, 
	PRIMARY KEY (param_id), 
	UNIQUE (trial_id, param_name), 
	FOREIGN KEY(trial_id) REFERENCES trials (trial_id)
);
INSERT INTO "trial_params" VALUES(1,1,'TILE_M',2.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [16, 32, 64, 128]}}');
INSERT INTO "trial_params" VALUES(2,1,'TILE_N',3.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [16, 32, 48, 64, 96, 128]}}');
INSERT INTO "trial_params" VALUES(3,1,'WARPS',2.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [1, 2, 4, 8]}}');
INSERT INTO "trial_params" VALUES(4,1,'STAGES',3.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": 1, "high": 4}}');
INSERT INTO "trial_params" VALUES(5,1,'PAD',0.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 8, "low": 0, "high": 16}}');
INSERT INTO "trial_params" VALUES(6,1,'LAYOUT',0.0,'{"name": "CategoricalDistribution", "attributes": {"choices": ["plain", "swizzle", "split"]}}');
INSERT INTO "trial_params" VALUES(7,1,'UNROLL',0.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [false, true]}}');
INSERT INTO "trial_params" VALUES(8,1,'CTAS',1.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": 1, "high": 3}}');
INSERT INTO "trial_params" VALUES(9,2,'TILE_M',3.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [16, 32, 64, 128]}}');
INSERT INTO "trial_params" VALUES(10,2,'TILE_N',3.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [16, 32, 48, 64, 96, 128]}}');
INSERT INTO "trial_params" VALUES(11,2,'WARPS',0.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [1, 2, 4, 8]}}');
INSERT INTO "trial_params" VALUES(12,2,'STAGES',3.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": 1, "high": 4}}');
INSERT INTO "trial_params" VALUES(13,2,'PAD',16.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 8, "low": 0, "high": 16}}');
INSERT INTO "trial_params" VALUES(14,2,'LAYOUT',2.0,'{"name": "CategoricalDistribution", "attributes": {"choices": ["plain", "swizzle", "split"]}}');
INSERT INTO "trial_params" VALUES(15,2,'UNROLL',0.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [false, true]}}');
INSERT INTO "trial_params" VALUES(16,2,'CTAS',2.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": 1, "high": 3}}');
INSERT INTO "trial_params" VALUES(17,3,'TILE_M',3.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [16, 32, 64, 128]}}');
INSERT INTO "trial_params" VALUES(18,3,'TILE_N',5.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [16, 32, 48, 64, 96, 128]}}');
INSERT INTO "trial_params" VALUES(19,3,'WARPS',2.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [1, 2, 4, 8]}}');
INSERT INTO "trial_params" VALUES(20,3,'STAGES',1.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": 1, "high": 4}}');
INSERT INTO "trial_params" VALUES(21,3,'PAD',8.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 8, "low": 0, "high": 16}}');
INSERT INTO "trial_params" VALUES(22,3,'LAYOUT',2.0,'{"name": "CategoricalDistribution", "attributes": {"choices": ["plain", "swizzle", "split"]}}');
INSERT INTO "trial_params" VALUES(23,3,'UNROLL',1.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [false, true]}}');
INSERT INTO "trial_params" VALUES(24,3,'CTAS',1.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": 1, "high": 3}}');
INSERT INTO "trial_params" VALUES(25,4,'TILE_M',2.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [16, 32, 64, 128]}}');
INSERT INTO "trial_params" VALUES(26,4,'TILE_N',3.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [16, 32, 48, 64, 96, 128]}}');
INSERT INTO "trial_params" VALUES(27,4,'WARPS',1.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [1, 2, 4, 8]}}');
INSERT INTO "trial_params" VALUES(28,4,'STAGES',2.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": 1, "high": 4}}');
INSERT INTO "trial_params" VALUES(29,4,'PAD',16.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 8, "low": 0, "high": 16}}');
INSERT INTO "trial_params" VALUES(30,4,'LAYOUT',0.0,'{"name": "CategoricalDistribution", "attributes": {"choices": ["plain", "swizzle", "split"]}}');
INSERT INTO "trial_params" VALUES(31,4,'UNROLL',1.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [false, true]}}');
INSERT INTO "trial_params" VALUES(32,4,'CTAS',1.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": 1, "high": 3}}');
CREATE TABLE trial_system_attributes (
	trial_system_attribute_id INTEGER NOT NULL, 
	trial_id INTEGER, 
	"key" VARCHAR(512), 
	value_json TEXT, 
	PRIMARY KEY (trial_system_attribute_id), 
	UNIQUE (trial_id, "key"), 
	FOREIGN KEY(trial_id) REFERENCES trials (trial_id)
);
INSERT INTO "trial_system_attributes" VALUES(1,1,'EvolutionSampler:generation','0');
INSERT INTO "trial_system_attributes" VALUES(2,2,'EvolutionSampler:generation','0');
INSERT INTO "trial_system_attributes" VALUES(3,3,'EvolutionSampler:generation','0');
INSERT INTO "trial_system_attributes" VALUES(4,4,'EvolutionSampler:generation','0');
CREATE TABLE trial_user_attributes (
	trial_user_attribute_id INTEGER NOT NULL, 
	trial_id INTEGER, 
	"key" VARCHAR(512), 
	value_json TEXT, 
	PRIMARY KEY (trial_user_attribute_id), 
	UNIQUE (trial_id, "key"), 
	FOREIGN KEY(trial_id) REFERENCES trials (trial_id)
);
INSERT INTO "trial_user_attributes" VALUES(1,1,'evoengine:status','"ok"');
INSERT INTO "trial_user_attributes" VALUES(2,2,'evoengine:status','"ok"');
INSERT INTO "trial_user_attributes" VALUES(3,3,'evoengine:status','"ok"');
INSERT INTO "trial_user_attributes" VALUES(4,4,'evoengine:status','"ok"');
CREATE TABLE trial_values (
	trial_value_id INTEGER NOT NULL, 
	trial_id INTEGER NOT NULL, 
	objective INTEGER NOT NULL, 
	value FLOAT, 
	value_type VARCHAR(7) NOT NULL, 
	PRIMARY KEY (trial_value_id), 
	UNIQUE (trial_id, objective), 
	FOREIGN KEY(trial_id) REFERENCES trials (trial_id)
);
INSERT INTO "trial_values" VALUES(1,1,0,7.2540775892809854497e+00,'FINITE');
INSERT INTO "trial_values" VALUES(2,2,0,1.38566557718619645102e+01,'FINITE');
INSERT INTO "trial_values" VALUES(3,3,0,8.10728891950324559445e+00,'FINITE');
INSERT INTO "trial_values" VALUES(4,4,0,7.60287799835975430795e+00,'FINITE');
CREATE TABLE trials (
	trial_id INTEGER NOT NULL, 
	number INTEGER, 
	study_id INTEGER, 
	state VARCHAR(8) NOT NULL, 
	datetime_start DATETIME, 
	datetime_complete DATETIME, 
	PRIMARY KEY (trial_id), 
	FOREIGN KEY(study_id) REFERENCES studies (study_id)
);
INSERT INTO "trials" VALUES(1,0,1,'COMPLETE','2026-11-21 10:49:21.099096','2026-11-21 10:49:21.110565');
INSERT INTO "trials" VALUES(2,1,1,'COMPLETE','2026-11-21 10:49:21.083549','2026-11-21 10:49:21.132141');
INSERT INTO "trials" VALUES(3,2,1,'COMPLETE','2026-11-21 10:49:21.100374','2026-11-21 10:49:21.135856');
INSERT INTO "trials" VALUES(4,3,1,'COMPLETE','2026-11-21 10:49:21.103063','2026-11-21 10:49:21.137238');
CREATE TABLE version_info (
	version_info_id INTEGER NOT NULL, 
	schema_version INTEGER, 
	library_version VARCHAR(256), 
	PRIMARY KEY (version_info_id), 
	CHECK (version_info_id=1)
);
INSERT INTO "version_info" VALUES(1,12,'5.0.0');
CREATE INDEX evo_evaluations_by_time ON evo_evaluations (study_id, status, median_us);
CREATE INDEX evo_evaluations_by_code ON evo_evaluations (study_id, code_hash);
CREATE INDEX evo_champions_by_scope ON evo_champions (scope, accepted, id);
CREATE UNIQUE INDEX ix_studies_study_name ON studies (study_name);
CREATE INDEX ix_trials_study_id ON trials (study_id);
COMMIT;
