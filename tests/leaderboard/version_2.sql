PRAGMA application_id = 1165381445;
PRAGMA user_version = 2;
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
INSERT INTO "evo_champions" VALUES(1,'1x8x512x64-fp16|cuda|Synthetic GPU|sm_89|measured|graph-warm',2,NULL,1,NULL,'2026-11-21 19:20:41.580563');
INSERT INTO "evo_champions" VALUES(2,'1x8x512x64-fp16|cuda|Synthetic GPU|sm_89|measured|graph-warm',4,2,1,'{"challenger_us": [8.302728546003475, 8.311338803439629, 8.303443438415362, 8.308839213997516, 8.312990955677558, 8.306437390638639, 8.306025294021676, 8.302505450403883, 8.30978646474044], "champion_us": [10.349756713954086, 10.3615320438767, 10.348841856379373, 10.36326874752706, 10.364984141547271, 10.36326634216033, 10.352171292597586, 10.36511478364174, 10.365531011252521], "gain": 0.19810660039122147, "low_gain": 0.19783042284874927, "threshold": 0.03, "accepted": true}','2026-11-21 19:20:41.642683');
INSERT INTO "evo_champions" VALUES(3,'1x8x512x64-fp16|cuda|Synthetic GPU|sm_89|measured|graph-warm',7,4,1,'{"challenger_us": [6.825701456153048, 6.833267005036892, 6.833616614605307, 6.827925887491569, 6.826258633441131, 6.8308580225755975, 6.830790372619203, 6.82445558193432, 6.8260518215975186], "champion_us": [8.307634551265025, 8.307226769695646, 8.304704325478772, 8.30332704321899, 8.31178016179727, 8.311106814339224, 8.30209682409487, 8.300389203062485, 8.305887110730676], "gain": 0.1778527069764413, "low_gain": 0.17751898050221127, "threshold": 0.03, "accepted": true}','2026-11-21 19:20:41.773006');
CREATE TABLE evo_claims (
	study_id INTEGER NOT NULL, 
	config_key VARCHAR NOT NULL, 
	family VARCHAR DEFAULT '' NOT NULL, 
	config_json TEXT NOT NULL, 
	owner VARCHAR NOT NULL, 
	created_at DATETIME NOT NULL, 
	PRIMARY KEY (study_id, config_key), 
	FOREIGN KEY(study_id) REFERENCES evo_studies (id)
);
INSERT INTO "evo_claims" VALUES(2,'e0ef4f813334e76f','synthetic','{"CTAS": 3, "LAYOUT": "swizzle", "PAD": 16, "STAGES": 2, "TILE_M": 128, "TILE_N": 48, "UNROLL": true, "WARPS": 4}','elsewhere:1:1:1','2026-11-21 19:20:41.805492');
INSERT INTO "evo_claims" VALUES(2,'07180202c08d7cc5','synthetic','{"CTAS": 1, "LAYOUT": "swizzle", "PAD": 16, "STAGES": 4, "TILE_M": 128, "TILE_N": 32, "UNROLL": false, "WARPS": 1}','elsewhere:1:1:1','2026-11-21 19:20:41.806941');
CREATE TABLE evo_evaluations (
	id INTEGER NOT NULL, 
	study_id INTEGER NOT NULL, 
	config_key VARCHAR NOT NULL, 
	family VARCHAR DEFAULT '' NOT NULL, 
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
	inputs_seed BIGINT, 
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
INSERT INTO "evo_evaluations" VALUES(1,1,'188d1578edb5dc8a','synthetic','{"CTAS": 2, "LAYOUT": "plain", "PAD": 0, "STAGES": 3, "TILE_M": 128, "TILE_N": 64, "UNROLL": false, "WARPS": 8}','timeout','not finished after 5 s','0c2d593fc8afc13f','code-188d1578edb5dc8a','t0','',96,0,0,0,32768,128,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,'{"compile": 0.5}',3,'13.0','13.0','2026-11-21 19:20:41.539716');
INSERT INTO "evo_evaluations" VALUES(2,1,'11d4de41c6ba2a0f','synthetic','{"CTAS": 3, "LAYOUT": "swizzle", "PAD": 16, "STAGES": 1, "TILE_M": 128, "TILE_N": 128, "UNROLL": false, "WARPS": 2}','ok','','6816d5335b02f008','code-11d4de41c6ba2a0f','t0','',96,0,0,0,32768,128,1,0.0004,0.001,0.0002,6,'mission','',NULL,1.03590576242902621117e+01,1.02554670480473593126e+01,1.04626482005331649109e+01,0,'graph-warm','[10.359057624290262, 10.359057624290262]',2.07181152485805242235e+01,'flash','{"compile": 0.5, "bench": 0.25}',2,'13.0','13.0','2026-11-21 19:20:41.565422');
INSERT INTO "evo_evaluations" VALUES(3,1,'ca0ace75890f6935','synthetic','{"CTAS": 1, "LAYOUT": "plain", "PAD": 16, "STAGES": 3, "TILE_M": 128, "TILE_N": 64, "UNROLL": true, "WARPS": 1}','ok','','385278ea4306dc36','code-ca119e2ee69049f2','t0','',96,0,0,0,32768,128,1,0.0004,0.001,0.0002,6,'mission','',NULL,1.47791192976250655992e+01,1.4631328104648813948e+01,1.49269104906013172495e+01,0,'graph-warm','[14.779119297625066, 14.779119297625066]',2.95582385952501311985e+01,'flash','{"compile": 0.5, "bench": 0.25}',0,'13.0','13.0','2026-11-21 19:20:41.611858');
INSERT INTO "evo_evaluations" VALUES(4,1,'a7c2d1fe54de1e86','synthetic','{"CTAS": 2, "LAYOUT": "plain", "PAD": 0, "STAGES": 3, "TILE_M": 32, "TILE_N": 32, "UNROLL": false, "WARPS": 1}','ok','','b759fecb904fc89e','code-a7c2d1fe54de1e86','t0','',96,0,0,0,32768,128,1,0.0004,0.001,0.0002,6,'mission','',NULL,8.30816125138305494601e+00,8.2250796388692251071e+00,8.39124286389688478493e+00,0,'graph-warm','[8.308161251383055, 8.308161251383055]',1.6616322502766109892e+01,'flash','{"compile": 0.5, "bench": 0.25}',1,'13.0','13.0','2026-11-21 19:20:41.621183');
INSERT INTO "evo_evaluations" VALUES(5,1,'9d4455ca0a7b0f62','synthetic','{"CTAS": 3, "LAYOUT": "plain", "PAD": 16, "STAGES": 3, "TILE_M": 128, "TILE_N": 16, "UNROLL": true, "WARPS": 2}','ok','','c643eda53ad319e1','code-0ccf8b875657a9b2','t0','',96,0,0,0,32768,128,1,0.0004,0.001,0.0002,6,'mission','',NULL,1.44566450911145665263e+01,1.43120786402034205764e+01,1.46012115420257124753e+01,0,'graph-warm','[14.456645091114567, 14.456645091114567]',2.89132901822291330526e+01,'flash','{"compile": 0.5, "bench": 0.25}',4,'13.0','13.0','2026-11-21 19:20:41.633340');
INSERT INTO "evo_evaluations" VALUES(6,1,'22cb060a38194114','synthetic','{"CTAS": 2, "LAYOUT": "swizzle", "PAD": 0, "STAGES": 1, "TILE_M": 64, "TILE_N": 16, "UNROLL": false, "WARPS": 1}','compile_failed','line 3: expected ;','a126c7c6f6a612e3','','t0','',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,'{"compile": 0.5}',7,'13.0','13.0','2026-11-21 19:20:41.640313');
INSERT INTO "evo_evaluations" VALUES(7,1,'3f66fdc80d2c0e79','synthetic','{"CTAS": 1, "LAYOUT": "swizzle", "PAD": 16, "STAGES": 1, "TILE_M": 64, "TILE_N": 32, "UNROLL": true, "WARPS": 4}','ok','','b724227214bc3307','code-698bba9b311983ed','t0','',96,0,0,0,32768,128,1,0.0004,0.001,0.0002,6,'mission','',NULL,6.82784386811005372663e+00,6.75956542942895310943e+00,6.89612230679115434384e+00,0,'graph-warm','[6.827843868110054, 6.827843868110054]',1.36556877362201074528e+01,'flash','{"compile": 0.5, "bench": 0.25}',5,'13.0','13.0','2026-11-21 19:20:41.656778');
INSERT INTO "evo_evaluations" VALUES(8,1,'476192b556fc2f91','synthetic','{"CTAS": 1, "LAYOUT": "split", "PAD": 8, "STAGES": 1, "TILE_M": 16, "TILE_N": 32, "UNROLL": false, "WARPS": 1}','ok','','c0b688a0714d78b6','code-476192b556fc2f91','t0','',96,0,0,0,32768,128,1,0.0004,0.001,0.0002,6,'mission','',NULL,8.65737792336641298618e+00,8.57080414413275,8.74395170260007681406e+00,0,'graph-warm','[8.657377923366413, 8.657377923366413]',1.73147558467328259728e+01,'flash','{"compile": 0.5, "bench": 0.25}',6,'13.0','13.0','2026-11-21 19:20:41.766693');
CREATE TABLE evo_sources (
	source_hash VARCHAR NOT NULL, 
	text_zlib BLOB NOT NULL, 
	PRIMARY KEY (source_hash)
);
INSERT INTO "evo_sources" VALUES('0c2d593fc8afc13f',X'789CD3D757700E710CB63552F0718CF40F0DB12DC849CCCC53087074B13550080E7174770DB6355608F1F4718DF7B53534B28030FD6CCD4C1442FD82FC7D7C6CDD12738A5315C21D8302826D2DB8006FFE15E5');
INSERT INTO "evo_sources" VALUES('6816d5335b02f008',X'789CD3D757700E710CB63556F0718CF40F0DB12D2ECFACAACA4955087074B1353453080E7174770DB6355408F1F4718DF7B53534B28030FDC0CC50BF207F1F1F5BB7C49CE2548570C7A080605B232E00E31D174A');
INSERT INTO "evo_sources" VALUES('385278ea4306dc36',X'789CD3D757700E710CB63554F0718CF40F0DB12DC849CCCC53087074B1353453080E7174770DB6355608F1F4718DF7B53534B28030FD6CCD4C1442FD82FC7D7C6C438A4A5315C21D830280A67001006CB215C9');
INSERT INTO "evo_sources" VALUES('b759fecb904fc89e',X'789CD3D757700E710CB63552F0718CF40F0DB12DC849CCCC53087074B13550080E7174770DB6355608F1F4718DF7B5353682B0FC40AC50BF207F1F1F5BB7C49CE2548570C7A080605B432E005BCB15A3');
INSERT INTO "evo_sources" VALUES('c643eda53ad319e1',X'789CD3D757700E710CB63556F0718CF40F0DB12DC849CCCC53087074B1353453080E71747705498678FAB8C6FBDA1A1A5940987E20D950BF207F1F1FDB90A2D2548570C7A080605B232E006CFD15C9');
INSERT INTO "evo_sources" VALUES('a126c7c6f6a612e3',X'789CD3D757700E710CB63552F0718CF40F0DB12D2ECFACAACA4955087074B13550080E7174770DB6355408F1F4718DF7B5353381B0FC6C0DCD1442FD82FC7D7C6CDD12738A5315C21D8302800AB900A52116AC');
INSERT INTO "evo_sources" VALUES('b724227214bc3307',X'789CD3D757700E710CB63554F0718CF40F0DB12D2ECFACAACA4955087074B1353453080E71747705498778FAB8C6FBDA9A9940587EB6C6460AA17E41FE3E3EB62145A5A90AE18E4101C1B6265C00A1BD1698');
INSERT INTO "evo_sources" VALUES('c0b688a0714d78b6',X'789CD3D757700E710CB63554F0718CF40F0DB12D2EC8C92C51087074B1B550080E71747705C98578FAB8C6FBDA1A9A41587EB6C6460AA17E41FE3E3EB66E8939C5A90AE18E410140855C0062AC15C2');
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
INSERT INTO "evo_studies" VALUES(1,'1806eae1ff239e04cb0b8defde886d560c9d392478e6061b93e56167aad2a928','1x8x512x64-fp16','{"batch": 1, "causal": false, "dtype": "fp16", "head_dim": 64, "heads": 8, "kv_heads": 8, "lengths_kv": [], "lengths_q": [], "lse": false, "seq_kv": 512, "seq_q": 512, "sink": false, "softcap": 0.0, "window_left": null, "window_right": null}','synthetic','cuda','Synthetic GPU','sm_89',0,'graph-warm','evolution',5,'','2026-11-21 19:20:40.911875');
INSERT INTO "evo_studies" VALUES(2,'cb557c6108e8ebd0c70c25708fadbd752e83c92f953e39ab2f01266aeb5c08d9','1x8x512x64-fp16','{"batch": 1, "causal": false, "dtype": "fp16", "head_dim": 64, "heads": 8, "kv_heads": 8, "lengths_kv": [], "lengths_q": [], "lse": false, "seq_kv": 512, "seq_q": 512, "sink": false, "softcap": 0.0, "window_left": null, "window_right": null}','synthetic','cuda','Synthetic GPU','sm_89',0,'graph-warm','evolution',99,'','2026-11-21 19:20:41.800048');
CREATE TABLE studies (
	study_id INTEGER NOT NULL, 
	study_name VARCHAR(512) NOT NULL, 
	PRIMARY KEY (study_id)
);
INSERT INTO "studies" VALUES(1,'evoengine-1806eae1ff239e04');
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
INSERT INTO "trial_params" VALUES(1,1,'TILE_M',3.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [16, 32, 64, 128]}}');
INSERT INTO "trial_params" VALUES(2,1,'TILE_N',3.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [16, 32, 48, 64, 96, 128]}}');
INSERT INTO "trial_params" VALUES(3,1,'WARPS',3.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [1, 2, 4, 8]}}');
INSERT INTO "trial_params" VALUES(4,1,'STAGES',3.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": 1, "high": 4}}');
INSERT INTO "trial_params" VALUES(5,1,'PAD',0.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 8, "low": 0, "high": 16}}');
INSERT INTO "trial_params" VALUES(6,1,'LAYOUT',0.0,'{"name": "CategoricalDistribution", "attributes": {"choices": ["plain", "swizzle", "split"]}}');
INSERT INTO "trial_params" VALUES(7,1,'UNROLL',0.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [false, true]}}');
INSERT INTO "trial_params" VALUES(8,1,'CTAS',2.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": 1, "high": 3}}');
INSERT INTO "trial_params" VALUES(9,2,'TILE_M',3.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [16, 32, 64, 128]}}');
INSERT INTO "trial_params" VALUES(10,2,'TILE_N',5.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [16, 32, 48, 64, 96, 128]}}');
INSERT INTO "trial_params" VALUES(11,2,'WARPS',1.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [1, 2, 4, 8]}}');
INSERT INTO "trial_params" VALUES(12,2,'STAGES',1.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": 1, "high": 4}}');
INSERT INTO "trial_params" VALUES(13,2,'PAD',16.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 8, "low": 0, "high": 16}}');
INSERT INTO "trial_params" VALUES(14,2,'LAYOUT',1.0,'{"name": "CategoricalDistribution", "attributes": {"choices": ["plain", "swizzle", "split"]}}');
INSERT INTO "trial_params" VALUES(15,2,'UNROLL',0.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [false, true]}}');
INSERT INTO "trial_params" VALUES(16,2,'CTAS',3.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": 1, "high": 3}}');
INSERT INTO "trial_params" VALUES(17,3,'TILE_M',3.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [16, 32, 64, 128]}}');
INSERT INTO "trial_params" VALUES(18,3,'TILE_N',3.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [16, 32, 48, 64, 96, 128]}}');
INSERT INTO "trial_params" VALUES(19,3,'WARPS',0.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [1, 2, 4, 8]}}');
INSERT INTO "trial_params" VALUES(20,3,'STAGES',3.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": 1, "high": 4}}');
INSERT INTO "trial_params" VALUES(21,3,'PAD',16.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 8, "low": 0, "high": 16}}');
INSERT INTO "trial_params" VALUES(22,3,'LAYOUT',0.0,'{"name": "CategoricalDistribution", "attributes": {"choices": ["plain", "swizzle", "split"]}}');
INSERT INTO "trial_params" VALUES(23,3,'UNROLL',1.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [false, true]}}');
INSERT INTO "trial_params" VALUES(24,3,'CTAS',1.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": 1, "high": 3}}');
INSERT INTO "trial_params" VALUES(25,4,'TILE_M',1.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [16, 32, 64, 128]}}');
INSERT INTO "trial_params" VALUES(26,4,'TILE_N',1.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [16, 32, 48, 64, 96, 128]}}');
INSERT INTO "trial_params" VALUES(27,4,'WARPS',0.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [1, 2, 4, 8]}}');
INSERT INTO "trial_params" VALUES(28,4,'STAGES',3.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": 1, "high": 4}}');
INSERT INTO "trial_params" VALUES(29,4,'PAD',0.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 8, "low": 0, "high": 16}}');
INSERT INTO "trial_params" VALUES(30,4,'LAYOUT',0.0,'{"name": "CategoricalDistribution", "attributes": {"choices": ["plain", "swizzle", "split"]}}');
INSERT INTO "trial_params" VALUES(31,4,'UNROLL',0.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [false, true]}}');
INSERT INTO "trial_params" VALUES(32,4,'CTAS',2.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": 1, "high": 3}}');
INSERT INTO "trial_params" VALUES(33,5,'TILE_M',3.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [16, 32, 64, 128]}}');
INSERT INTO "trial_params" VALUES(34,5,'TILE_N',0.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [16, 32, 48, 64, 96, 128]}}');
INSERT INTO "trial_params" VALUES(35,5,'WARPS',1.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [1, 2, 4, 8]}}');
INSERT INTO "trial_params" VALUES(36,5,'STAGES',3.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": 1, "high": 4}}');
INSERT INTO "trial_params" VALUES(37,5,'PAD',16.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 8, "low": 0, "high": 16}}');
INSERT INTO "trial_params" VALUES(38,5,'LAYOUT',0.0,'{"name": "CategoricalDistribution", "attributes": {"choices": ["plain", "swizzle", "split"]}}');
INSERT INTO "trial_params" VALUES(39,5,'UNROLL',1.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [false, true]}}');
INSERT INTO "trial_params" VALUES(40,5,'CTAS',3.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": 1, "high": 3}}');
INSERT INTO "trial_params" VALUES(41,6,'TILE_M',2.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [16, 32, 64, 128]}}');
INSERT INTO "trial_params" VALUES(42,6,'TILE_N',0.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [16, 32, 48, 64, 96, 128]}}');
INSERT INTO "trial_params" VALUES(43,6,'WARPS',0.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [1, 2, 4, 8]}}');
INSERT INTO "trial_params" VALUES(44,6,'STAGES',1.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": 1, "high": 4}}');
INSERT INTO "trial_params" VALUES(45,6,'PAD',0.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 8, "low": 0, "high": 16}}');
INSERT INTO "trial_params" VALUES(46,6,'LAYOUT',1.0,'{"name": "CategoricalDistribution", "attributes": {"choices": ["plain", "swizzle", "split"]}}');
INSERT INTO "trial_params" VALUES(47,6,'UNROLL',0.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [false, true]}}');
INSERT INTO "trial_params" VALUES(48,6,'CTAS',2.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": 1, "high": 3}}');
INSERT INTO "trial_params" VALUES(49,7,'TILE_M',2.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [16, 32, 64, 128]}}');
INSERT INTO "trial_params" VALUES(50,7,'TILE_N',1.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [16, 32, 48, 64, 96, 128]}}');
INSERT INTO "trial_params" VALUES(51,7,'WARPS',2.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [1, 2, 4, 8]}}');
INSERT INTO "trial_params" VALUES(52,7,'STAGES',1.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": 1, "high": 4}}');
INSERT INTO "trial_params" VALUES(53,7,'PAD',16.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 8, "low": 0, "high": 16}}');
INSERT INTO "trial_params" VALUES(54,7,'LAYOUT',1.0,'{"name": "CategoricalDistribution", "attributes": {"choices": ["plain", "swizzle", "split"]}}');
INSERT INTO "trial_params" VALUES(55,7,'UNROLL',1.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [false, true]}}');
INSERT INTO "trial_params" VALUES(56,7,'CTAS',1.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": 1, "high": 3}}');
INSERT INTO "trial_params" VALUES(57,8,'TILE_M',0.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [16, 32, 64, 128]}}');
INSERT INTO "trial_params" VALUES(58,8,'TILE_N',1.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [16, 32, 48, 64, 96, 128]}}');
INSERT INTO "trial_params" VALUES(59,8,'WARPS',0.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [1, 2, 4, 8]}}');
INSERT INTO "trial_params" VALUES(60,8,'STAGES',1.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": 1, "high": 4}}');
INSERT INTO "trial_params" VALUES(61,8,'PAD',8.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 8, "low": 0, "high": 16}}');
INSERT INTO "trial_params" VALUES(62,8,'LAYOUT',2.0,'{"name": "CategoricalDistribution", "attributes": {"choices": ["plain", "swizzle", "split"]}}');
INSERT INTO "trial_params" VALUES(63,8,'UNROLL',0.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [false, true]}}');
INSERT INTO "trial_params" VALUES(64,8,'CTAS',1.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": 1, "high": 3}}');
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
INSERT INTO "trial_system_attributes" VALUES(5,5,'EvolutionSampler:generation','0');
INSERT INTO "trial_system_attributes" VALUES(6,6,'EvolutionSampler:generation','0');
INSERT INTO "trial_system_attributes" VALUES(7,7,'EvolutionSampler:generation','0');
INSERT INTO "trial_system_attributes" VALUES(8,8,'EvolutionSampler:generation','0');
CREATE TABLE trial_user_attributes (
	trial_user_attribute_id INTEGER NOT NULL, 
	trial_id INTEGER, 
	"key" VARCHAR(512), 
	value_json TEXT, 
	PRIMARY KEY (trial_user_attribute_id), 
	UNIQUE (trial_id, "key"), 
	FOREIGN KEY(trial_id) REFERENCES trials (trial_id)
);
INSERT INTO "trial_user_attributes" VALUES(1,1,'evoengine:status','"timeout"');
INSERT INTO "trial_user_attributes" VALUES(2,2,'evoengine:status','"ok"');
INSERT INTO "trial_user_attributes" VALUES(3,3,'evoengine:status','"ok"');
INSERT INTO "trial_user_attributes" VALUES(4,4,'evoengine:status','"ok"');
INSERT INTO "trial_user_attributes" VALUES(5,5,'evoengine:status','"ok"');
INSERT INTO "trial_user_attributes" VALUES(6,6,'evoengine:status','"compile_failed"');
INSERT INTO "trial_user_attributes" VALUES(7,7,'evoengine:status','"ok"');
INSERT INTO "trial_user_attributes" VALUES(8,8,'evoengine:status','"ok"');
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
INSERT INTO "trial_values" VALUES(1,2,0,1.03590576242902621117e+01,'FINITE');
INSERT INTO "trial_values" VALUES(2,3,0,1.47791192976250655992e+01,'FINITE');
INSERT INTO "trial_values" VALUES(3,4,0,8.30816125138305494601e+00,'FINITE');
INSERT INTO "trial_values" VALUES(4,5,0,1.44566450911145665263e+01,'FINITE');
INSERT INTO "trial_values" VALUES(5,7,0,6.82784386811005372663e+00,'FINITE');
INSERT INTO "trial_values" VALUES(6,8,0,8.65737792336641298618e+00,'FINITE');
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
INSERT INTO "trials" VALUES(1,0,1,'FAIL','2026-11-21 19:20:41.514198','2026-11-21 19:20:41.548878');
INSERT INTO "trials" VALUES(2,1,1,'COMPLETE','2026-11-21 19:20:41.504846','2026-11-21 19:20:41.579961');
INSERT INTO "trials" VALUES(3,2,1,'COMPLETE','2026-11-21 19:20:41.471545','2026-11-21 19:20:41.614148');
INSERT INTO "trials" VALUES(4,3,1,'COMPLETE','2026-11-21 19:20:41.491904','2026-11-21 19:20:41.624813');
INSERT INTO "trials" VALUES(5,4,1,'COMPLETE','2026-11-21 19:20:41.521896','2026-11-21 19:20:41.640024');
INSERT INTO "trials" VALUES(6,5,1,'FAIL','2026-11-21 19:20:41.614406','2026-11-21 19:20:41.642116');
INSERT INTO "trials" VALUES(7,6,1,'COMPLETE','2026-11-21 19:20:41.549253','2026-11-21 19:20:41.658177');
INSERT INTO "trials" VALUES(8,7,1,'COMPLETE','2026-11-21 19:20:41.600907','2026-11-21 19:20:41.772370');
CREATE TABLE version_info (
	version_info_id INTEGER NOT NULL, 
	schema_version INTEGER, 
	library_version VARCHAR(256), 
	PRIMARY KEY (version_info_id), 
	CHECK (version_info_id=1)
);
INSERT INTO "version_info" VALUES(1,12,'5.0.0');
CREATE INDEX evo_evaluations_by_code ON evo_evaluations (study_id, code_hash);
CREATE INDEX evo_evaluations_by_time ON evo_evaluations (study_id, status, median_us);
CREATE INDEX evo_champions_by_scope ON evo_champions (scope, accepted, id);
CREATE UNIQUE INDEX ix_studies_study_name ON studies (study_name);
CREATE INDEX ix_trials_study_id ON trials (study_id);
COMMIT;
