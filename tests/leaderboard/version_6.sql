PRAGMA application_id = 1165381445;
PRAGMA user_version = 6;
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
	pending BOOLEAN, 
	duel_json TEXT, 
	created_at DATETIME NOT NULL, 
	PRIMARY KEY (id), 
	FOREIGN KEY(evaluation_id) REFERENCES evo_evaluations (id), 
	FOREIGN KEY(champion_id) REFERENCES evo_evaluations (id)
);
INSERT INTO "evo_champions" VALUES(1,'1x8x512x64-fp16|cuda|Synthetic GPU|sm_89|measured|graph-warm',1,NULL,1,0,NULL,'2026-11-22 19:09:39.951709');
INSERT INTO "evo_champions" VALUES(2,'1x8x512x64-fp16|cuda|Synthetic GPU|sm_89|measured|graph-warm',2,1,1,0,'{"challenger_us": [6.389269784479921, 6.392789202174452, 6.3880447821757, 6.387120305676534, 6.397894280243219, 6.3963187857036425, 6.386663276239505, 6.395965028631648, 6.3918563739026535], "champion_us": [9.097885764111805, 9.093632618846526, 9.104221707760514, 9.108392110306214, 9.107777736535098, 9.099947233739197, 9.099132873801377, 9.093499011403622, 9.095083416039527], "gain": 0.2976041408387734, "low_gain": 0.29717447342083353, "threshold": 0.03, "accepted": true, "telemetry": null}','2026-11-22 19:09:39.966290');
CREATE TABLE evo_claims (
	study_id INTEGER NOT NULL, 
	config_key VARCHAR NOT NULL, 
	family VARCHAR DEFAULT '' NOT NULL, 
	config_json TEXT NOT NULL, 
	owner VARCHAR NOT NULL, 
	trial_number INTEGER, 
	descent_json TEXT, 
	created_at DATETIME NOT NULL, 
	PRIMARY KEY (study_id, config_key), 
	FOREIGN KEY(study_id) REFERENCES evo_studies (id)
);
INSERT INTO "evo_claims" VALUES(2,'3edc0664eb954be1','synthetic','{"CTAS": 1, "LAYOUT": "plain", "PAD": 0, "STAGES": 1, "TILE_M": 16, "TILE_N": 16, "UNROLL": false, "WARPS": 1}','elsewhere:1:1:1',0,NULL,'2026-11-22 19:09:40.405948');
INSERT INTO "evo_claims" VALUES(2,'10820b8998266b5c','synthetic','{"CTAS": 1, "LAYOUT": "plain", "PAD": 0, "STAGES": 1, "TILE_M": 16, "TILE_N": 16, "UNROLL": true, "WARPS": 1}','elsewhere:1:1:1',1,NULL,'2026-11-22 19:09:40.406181');
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
	telemetry_json TEXT, 
	energy_uj FLOAT, 
	parts_json TEXT, 
	stage_seconds_json TEXT NOT NULL, 
	notes_json TEXT, 
	trial_number INTEGER, 
	descent_json TEXT, 
	driver VARCHAR NOT NULL, 
	nvrtc VARCHAR NOT NULL, 
	created_at DATETIME NOT NULL, 
	PRIMARY KEY (id), 
	UNIQUE (study_id, config_key), 
	FOREIGN KEY(study_id) REFERENCES evo_studies (id)
);
INSERT INTO "evo_evaluations" VALUES(1,1,'f59a6dc145ea917a','synthetic','{"CTAS": 1, "LAYOUT": "plain", "PAD": 16, "STAGES": 1, "TILE_M": 64, "TILE_N": 32, "UNROLL": false, "WARPS": 2}','ok','','174e24f15fd93ca7','code-f59a6dc145ea917a','t0','',96,0,0,0,32768,128,1,0.0004,0.001,0.0002,6,'mission','',NULL,9.10053097591259430032e+00,9.00952566615346839284e+00,9.19153628567172,0,'graph-warm','[9.100530975912594, 9.100530975912594]',1.82010619518251886006e+01,'flash',NULL,NULL,NULL,'{"compile": 0.5, "bench": 0.25}',NULL,0,'{"move": "stranger", "parents": []}','13.0','13.0','2026-11-22 19:09:39.946352');
INSERT INTO "evo_evaluations" VALUES(2,1,'be474d5e1d2cf0c3','synthetic','{"CTAS": 2, "LAYOUT": "split", "PAD": 8, "STAGES": 3, "TILE_M": 32, "TILE_N": 48, "UNROLL": true, "WARPS": 2}','ok','','ab40277f16d51b7a','code-be474d5e1d2cf0c3','t0','',96,0,0,0,32768,128,1,0.0004,0.001,0.0002,6,'mission','',NULL,6.39238692946250885995e+00,6.32846306016788329174e+00,6.45631079875713442817e+00,0,'graph-warm','[6.392386929462509, 6.392386929462509]',1.27847738589250177194e+01,'flash',NULL,NULL,NULL,'{"compile": 0.5, "bench": 0.25}','["a note"]',1,'{"move": "stranger", "parents": []}','13.0','13.0','2026-11-22 19:09:39.950279');
INSERT INTO "evo_evaluations" VALUES(3,1,'bf018ed705f95914','synthetic','{"CTAS": 3, "LAYOUT": "swizzle", "PAD": 0, "STAGES": 1, "TILE_M": 16, "TILE_N": 128, "UNROLL": false, "WARPS": 1}','ok','','f44e8e974ff4e028','code-bf018ed705f95914','t0','',96,0,0,0,32768,128,1,0.0004,0.001,0.0002,6,'mission','',NULL,6.79043370115796651731e+00,6.7225293641463865768e+00,6.85833803816954645782e+00,0,'graph-warm','[6.7904337011579665, 6.7904337011579665]',1.3580867402315933035e+01,'flash',NULL,1234.5,NULL,'{"compile": 0.5, "bench": 0.25}',NULL,2,'{"move": "stranger", "parents": []}','13.0','13.0','2026-11-22 19:09:39.963135');
INSERT INTO "evo_evaluations" VALUES(4,1,'59b5cbca40ba84cf','synthetic','{"CTAS": 3, "LAYOUT": "plain", "PAD": 0, "STAGES": 3, "TILE_M": 128, "TILE_N": 16, "UNROLL": false, "WARPS": 4}','ok','','0c4f50a9e3174969','code-59b5cbca40ba84cf','t0','',96,0,0,0,32768,128,1,0.0004,0.001,0.0002,6,'mission','',NULL,1.16665830387187181567e+01,1.15499172083315304604e+01,1.1783248869105905854e+01,0,'graph-warm','[11.666583038718718, 11.666583038718718]',2.33331660774374363134e+01,'flash',NULL,NULL,NULL,'{"compile": 0.5, "bench": 0.25}',NULL,3,'{"move": "stranger", "parents": []}','13.0','13.0','2026-11-22 19:09:39.964561');
INSERT INTO "evo_evaluations" VALUES(5,1,'47a16c1a23817898','synthetic','{"CTAS": 1, "LAYOUT": "plain", "PAD": 8, "STAGES": 1, "TILE_M": 128, "TILE_N": 96, "UNROLL": false, "WARPS": 8}','ok','','709f93b3439ce16e','code-47a16c1a23817898','t0','',96,0,0,0,32768,128,1,0.0004,0.001,0.0002,6,'mission','',NULL,7.87714602919901452082e+00,7.79837456890702451772e+00,7.95591748949100452392e+00,0,'graph-warm','[7.8771460291990145, 7.8771460291990145]',1.57542920583980290412e+01,'flash',NULL,NULL,NULL,'{"compile": 0.5, "bench": 0.25}',NULL,4,'{"move": "stranger", "parents": []}','13.0','13.0','2026-11-22 19:09:39.970172');
INSERT INTO "evo_evaluations" VALUES(6,1,'6292754f59faca97','synthetic','{"CTAS": 2, "LAYOUT": "split", "PAD": 8, "STAGES": 1, "TILE_M": 128, "TILE_N": 64, "UNROLL": true, "WARPS": 4}','ok','','80664d619a318bde','code-6292754f59faca97','t0','',96,0,0,0,32768,128,1,0.0004,0.001,0.0002,6,'mission','',NULL,7.58784322078115,7.51196478857333893586e+00,7.66372165298896135254e+00,0,'graph-warm','[7.58784322078115, 7.58784322078115]',15.1756864415623,'flash',NULL,NULL,NULL,'{"compile": 0.5, "bench": 0.25}',NULL,5,'{"move": "stranger", "parents": []}','13.0','13.0','2026-11-22 19:09:39.971450');
INSERT INTO "evo_evaluations" VALUES(7,1,'1e1f06380555f217','synthetic','{"CTAS": 1, "LAYOUT": "plain", "PAD": 0, "STAGES": 4, "TILE_M": 32, "TILE_N": 128, "UNROLL": false, "WARPS": 1}','ok','','fa9f1afea726f468','code-1e1f06380555f217','t0','',96,0,0,0,32768,128,1,0.0004,0.001,0.0002,6,'mission','',NULL,1.06937447301743748795e+01,1.05868072828726305094e+01,1.08006821774761192496e+01,0,'graph-warm','[10.693744730174375, 10.693744730174375]',2.1387489460348749759e+01,'flash',NULL,NULL,NULL,'{"compile": 0.5, "bench": 0.25}',NULL,6,'{"move": "stranger", "parents": []}','13.0','13.0','2026-11-22 19:09:39.972542');
INSERT INTO "evo_evaluations" VALUES(8,1,'01d3954f32060a6b','synthetic','{"CTAS": 3, "LAYOUT": "plain", "PAD": 16, "STAGES": 1, "TILE_M": 64, "TILE_N": 16, "UNROLL": false, "WARPS": 4}','ok','','fda3fd688b79b5d9','code-01d3954f32060a6b','t0','',96,0,0,0,32768,128,1,0.0004,0.001,0.0002,6,'mission','',NULL,9.49257291665299796079e+00,9.39764718748646821211e+00,9.58749864581952770947e+00,0,'graph-warm','[9.492572916652998, 9.492572916652998]',1.89851458333059959215e+01,'flash',NULL,NULL,NULL,'{"compile": 0.5, "bench": 0.25}',NULL,7,'{"move": "stranger", "parents": []}','13.0','13.0','2026-11-22 19:09:39.973647');
CREATE TABLE evo_imports (
	id INTEGER NOT NULL, 
	problem VARCHAR NOT NULL, 
	family VARCHAR NOT NULL, 
	config_key VARCHAR NOT NULL, 
	config_json TEXT NOT NULL, 
	claimed_us FLOAT NOT NULL, 
	claimed_predicted BOOLEAN NOT NULL, 
	claimed_device VARCHAR NOT NULL, 
	origin VARCHAR NOT NULL, 
	imported_at DATETIME NOT NULL, 
	PRIMARY KEY (id), 
	UNIQUE (problem, config_key)
);
CREATE TABLE evo_profiles (
	id INTEGER NOT NULL, 
	evaluation_id INTEGER NOT NULL, 
	gpu VARCHAR NOT NULL, 
	tool VARCHAR NOT NULL, 
	code_hash VARCHAR NOT NULL, 
	launches_json TEXT NOT NULL, 
	counted_at DATETIME NOT NULL, 
	PRIMARY KEY (id), 
	FOREIGN KEY(evaluation_id) REFERENCES evo_evaluations (id)
);
INSERT INTO "evo_profiles" VALUES(1,3,'NVIDIA H200','Nsight Compute','c0de','[{"kernel": "k", "values": {"sm__cycles_active.sum": 2.0}, "units": {"sm__cycles_active.sum": "cycle"}}]','2026-01-02 03:04:05.000000');
CREATE TABLE evo_sources (
	source_hash VARCHAR NOT NULL, 
	text_zlib BLOB NOT NULL, 
	PRIMARY KEY (source_hash)
);
INSERT INTO "evo_sources" VALUES('174e24f15fd93ca7',X'785E8CD73D4A43411486E1FEAEE2946AA1F7FC8D09C1CADE2D5C42BC91A024E166220111DC83DBB17327AEC48095C5C77CD34DF14EF53073E6E6469EC7693BBE482F3F1F9FF2FDD51DEA745C55B95F3FC95B27E775A8CBBA59C96AB73DD4F1B49F64B3ADF22077D22FBAF745370C8FE3EB66350E83AC5F76CB2AFBE55487FEE26F73BAECFE4E99C67A9CB6D25FF76BB992D339ED40AA20D5766A20B576EA20F5761A208D769A20CD765A405ADAE92D486FDBE90CA4B3763A07E9BC9D2AE2A48C27088A10A5889412A614A152429522564AB852044B09598A6829614B112E257429E2A5842F45C0941066489811C20C09334298C14B8B1066489811C20C09334298216146083324CC086186841921CC90302384191266843047C29C10E6489813C21C09734298C3879110E6489813C21C0973429823614E087324CC09618E843921CC9130278405121684B040C2821016485810C202090B4258C0E18B1016485810C202090B4258206141080B242C0861818405212C91B0248425129684B044C2921096485812C212094B4258C2019F1096485812C212094B4258226149084B242C096105092B84B0828415425841C20A21AC206185105690B042082B4858218415F889FC27EC170000FFFF8CD23D0A02311884E13EA748A91692FDCB378B87098B66411095106541BCBB828D858333DD146FF7A474C8F7E33EA7E4E7D365AAFE3A959AA2AD3E6F59BB87F3EF955C6FE5ECA36DC3EC377ED9B9A773E9770C16438847168FFF630B24B620C40D8B1B216E59DC0A71C7E24E887B16F7423CB07810E2C8E228C44C9809C28C09334198316126080313064118983008C2C084411006260C823030611084810983200C4C18046160C22008031306411898307C0B7B010000FFFF0300129C8F21');
INSERT INTO "evo_sources" VALUES('ab40277f16d51b7a',X'785E8CD73D4A43411486E1FEAEE2946A6172FE268A58D9BB854B8837120C377233918008EEC1EDD8B91357622095C5C77CD34DF14EF5307366369397611A87ADA8FC7E7EC9CF77B7AFD36155E561FD2CEF9D9CD6BE2EEB6625ABDDB8AFC3F17592CD58E551EE45EFBA8FBBAEEF9F86B7CD6AE87B596F77CB2AAFCBA9F6F38BF3E678D99D4F99867A9846995FCFD77225C753DA815441AAEDD4406AEDD441EAED34401AED34419AEDB480B4B4D3054817EDF406A437EDF416A4B7ED541127653C4150842845A49430A5089512AA14B152C29522584AC852444B095B8A7029A14B112F257C2902A6843043C28C1066489811C20C5E5A843043C28C1066489811C20C09334298216146083324CC086186841921CC903023843912E6843047C29C10E6489813C21C3E8C843047C29C10E6489813C21C0973429823614E087324CC09618E8439212C90B0208405121684B040C2821016485810C2020E5F84B040C2821016485810C202090B4258206141080B242C0861898425212C91B0248425129684B044C2921096485812C2120EF884B044C2921096485812C212094B4258226149082B485821841524AC10C20A1256086105092B84B0828415425841C20A21ACC04FE43F617F000000FFFF8CD23D0A02311884E13EA748A91692FDCB378B87098B66411095106541BCBB828D858333DD146FF7A474C8F7E33EA7E4E7D365AAFE3A959AA2AD3E6F59BB87F3EF955C6FE5ECA36DC3EC377ED9B9A773E9770C16438847168FFF630B24B620C40D8B1B216E59DC0A71C7E24E887B16F7423CB07810E2C8E228C44C9809C28C09334198316126080313064118983008C2C084411006260C823030611084810983200C4C18046160C22008031306411898307C0B7B010000FFFF03003D958F23');
INSERT INTO "evo_sources" VALUES('f44e8e974ff4e028',X'785E8CD73D4A43411486E1FEAEE2946A6172FE268A58D9BB854B8837120C377233918008EEC1EDD8B91357622095C5C77CD34DF14EF5307366369397611A87AD98FC7E7EC9CF77B7AFD36155E561FD2CEF9D9CD6BE2EEB6625ABDDB8AFC3F17592CD58E551EEC5EEBA8FBBAEEF9F86B7CD6AE87B596F77CB2AAFCBA9F6F38BF3E678D99D4F99867A9846995FCFD77225C753DA815441AAEDD4406AEDD441EAED34401AED34419AEDB480B4B4D3054817EDF406A437EDF416A4B7ED541127653C4150842845A49430A5089512AA14B152C29522584AC852444B095B8A7029A14B112F257C2902A6843043C28C1066489811C20C5E5A843043C28C1066489811C20C09334298216146083324CC086186841921CC903023843912E6843047C29C10E6489813C21C3E8C843047C29C10E6489813C21C0973429823614E087324CC09618E8439212C90B0208405121684B040C2821016485810C2020E5F84B040C2821016485810C202090B4258206141080B242C0861898425212C91B0248425129684B044C2921096485812C2120EF884B044C2921096485812C212094B4258226149082B485821841524AC10C20A1256086105092B84B0828415425841C20A21ACC04FE43F617F000000FFFF8CD23D0A02311884E13EA748A91692FDCB378B87098B66411095106541BCBB828D858333DD146FF7A474C8F7E33EA7E4E7D365AAFE3A959AA2AD3E6F59BB87F3EF955C6FE5ECA36DC3EC377ED9B9A773E9770C16438847168FFF630B24B620C40D8B1B216E59DC0A71C7E24E887B16F7423CB07810E2C8E228C44C9809C28C09334198316126080313064118983008C2C084411006260C823030611084810983200C4C18046160C22008031306411898307C0B7B010000FFFF0300688E8F25');
INSERT INTO "evo_sources" VALUES('0c4f50a9e3174969',X'785ED2D757700E710CB63556F0718CF40F0DB12DC849CCCC53087074B13550080E71747705C98578FAB8C6FBDA1A1A5940987EB686660AA17E41FE3E3EB66E8939C5A90AE18E4101C1B6265C00000000FFFF03006FF415DF');
INSERT INTO "evo_sources" VALUES('709f93b3439ce16e',X'785ED2D757700E710CB63554F0718CF40F0DB12DC849CCCC53087074B1B550080E71747705C98578FAB8C6FBDA1A1A5940987EB696660AA17E41FE3E3EB66E8939C5A90AE18E4101C1B6165C00000000FFFF0300717C15EF');
INSERT INTO "evo_sources" VALUES('80664d619a318bde',X'785ED2D757700E710CB63552F0718CF40F0DB12D2EC8C92C51087074B1B550080E7174770DB6355408F1F4718DF7B53534B28030FD6CCD4C1442FD82FC7D7C6C438A4A5315C21D8302826D4DB800000000FFFF030060F115B4');
INSERT INTO "evo_sources" VALUES('fa9f1afea726f468',X'785ED2D757700E710CB63554F0718CF40F0DB12DC849CCCC53087074B13550080E7174770DB6355108F1F4718DF7B5353682B0FC6C0D8D2C1442FD82FC7D7C6CDD12738A5315C21D830280A67001000000FFFF03006FDF15D9');
INSERT INTO "evo_sources" VALUES('fda3fd688b79b5d9',X'785ED2D757700E710CB63556F0718CF40F0DB12DC849CCCC53087074B1353453080E7174770DB6355408F1F4718DF7B5353381B0FC4092A17E41FE3E3EB66E8939C5A90AE18E4101C1B6265C00000000FFFF03006F8E15E3');
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
	workload_json TEXT, 
	spaces_json TEXT, 
	created_at DATETIME NOT NULL, 
	PRIMARY KEY (id), 
	UNIQUE (identity)
);
INSERT INTO "evo_studies" VALUES(1,'ec6b89ec9add2a6bb245a065046bcde9d3fae715e8d79a3faeb87aeebd2b2825','1x8x512x64-fp16','{"batch": 1, "causal": false, "dtype": "fp16", "head_dim": 64, "heads": 8, "kv_heads": 8, "lengths_kv": [], "lengths_q": [], "lse": false, "seq_kv": 512, "seq_q": 512, "sink": false, "softcap": 0.0, "window_left": null, "window_right": null}','synthetic','cuda','Synthetic GPU','sm_89',0,'graph-warm','evolution',9,'',NULL,NULL,'2026-11-22 19:09:39.886264');
INSERT INTO "evo_studies" VALUES(2,'59c7aab44a51544de964defc94b5c26275ee9cf0d3037f09dbb16f19df87785c','1x8x512x64-fp16','{"batch": 1, "causal": false, "dtype": "fp16", "head_dim": 64, "heads": 8, "kv_heads": 8, "lengths_kv": [], "lengths_q": [], "lse": false, "seq_kv": 512, "seq_q": 512, "sink": false, "softcap": 0.0, "window_left": null, "window_right": null}','synthetic','cuda','Synthetic GPU','sm_89',0,'graph-warm','evolution',10,'',NULL,NULL,'2026-11-22 19:09:40.404147');
CREATE TABLE studies (
	study_id INTEGER NOT NULL, 
	study_name VARCHAR(512) NOT NULL, 
	PRIMARY KEY (study_id)
);
INSERT INTO "studies" VALUES(1,'evoengine-ec6b89ec9add2a6b');
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
INSERT INTO "study_system_attributes" VALUES(1,1,'study:metric_names','["us"]');
CREATE TABLE study_user_attributes (
	study_user_attribute_id INTEGER NOT NULL, 
	study_id INTEGER, 
	"key" VARCHAR(512), 
	value_json TEXT, 
	PRIMARY KEY (study_user_attribute_id), 
	UNIQUE (study_id, "key"), 
	FOREIGN KEY(study_id) REFERENCES studies (study_id)
);
INSERT INTO "study_user_attributes" VALUES(1,1,'evoengine:problem','"1x8x512x64-fp16"');
INSERT INTO "study_user_attributes" VALUES(2,1,'evoengine:device','"Synthetic GPU"');
INSERT INTO "study_user_attributes" VALUES(3,1,'evoengine:arch','"sm_89"');
INSERT INTO "study_user_attributes" VALUES(4,1,'evoengine:times','"us, graph-warm"');
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
INSERT INTO "trial_params" VALUES(2,1,'TILE_N',1.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [16, 32, 48, 64, 96, 128]}}');
INSERT INTO "trial_params" VALUES(3,1,'WARPS',1.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [1, 2, 4, 8]}}');
INSERT INTO "trial_params" VALUES(4,1,'STAGES',1.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": 1, "high": 4}}');
INSERT INTO "trial_params" VALUES(5,1,'PAD',16.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 8, "low": 0, "high": 16}}');
INSERT INTO "trial_params" VALUES(6,1,'LAYOUT',0.0,'{"name": "CategoricalDistribution", "attributes": {"choices": ["plain", "swizzle", "split"]}}');
INSERT INTO "trial_params" VALUES(7,1,'UNROLL',0.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [false, true]}}');
INSERT INTO "trial_params" VALUES(8,1,'CTAS',1.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": 1, "high": 3}}');
INSERT INTO "trial_params" VALUES(9,2,'TILE_M',1.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [16, 32, 64, 128]}}');
INSERT INTO "trial_params" VALUES(10,2,'TILE_N',2.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [16, 32, 48, 64, 96, 128]}}');
INSERT INTO "trial_params" VALUES(11,2,'WARPS',1.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [1, 2, 4, 8]}}');
INSERT INTO "trial_params" VALUES(12,2,'STAGES',3.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": 1, "high": 4}}');
INSERT INTO "trial_params" VALUES(13,2,'PAD',8.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 8, "low": 0, "high": 16}}');
INSERT INTO "trial_params" VALUES(14,2,'LAYOUT',2.0,'{"name": "CategoricalDistribution", "attributes": {"choices": ["plain", "swizzle", "split"]}}');
INSERT INTO "trial_params" VALUES(15,2,'UNROLL',1.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [false, true]}}');
INSERT INTO "trial_params" VALUES(16,2,'CTAS',2.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": 1, "high": 3}}');
INSERT INTO "trial_params" VALUES(17,3,'TILE_M',0.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [16, 32, 64, 128]}}');
INSERT INTO "trial_params" VALUES(18,3,'TILE_N',5.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [16, 32, 48, 64, 96, 128]}}');
INSERT INTO "trial_params" VALUES(19,3,'WARPS',0.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [1, 2, 4, 8]}}');
INSERT INTO "trial_params" VALUES(20,3,'STAGES',1.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": 1, "high": 4}}');
INSERT INTO "trial_params" VALUES(21,3,'PAD',0.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 8, "low": 0, "high": 16}}');
INSERT INTO "trial_params" VALUES(22,3,'LAYOUT',1.0,'{"name": "CategoricalDistribution", "attributes": {"choices": ["plain", "swizzle", "split"]}}');
INSERT INTO "trial_params" VALUES(23,3,'UNROLL',0.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [false, true]}}');
INSERT INTO "trial_params" VALUES(24,3,'CTAS',3.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": 1, "high": 3}}');
INSERT INTO "trial_params" VALUES(25,4,'TILE_M',3.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [16, 32, 64, 128]}}');
INSERT INTO "trial_params" VALUES(26,4,'TILE_N',0.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [16, 32, 48, 64, 96, 128]}}');
INSERT INTO "trial_params" VALUES(27,4,'WARPS',2.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [1, 2, 4, 8]}}');
INSERT INTO "trial_params" VALUES(28,4,'STAGES',3.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": 1, "high": 4}}');
INSERT INTO "trial_params" VALUES(29,4,'PAD',0.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 8, "low": 0, "high": 16}}');
INSERT INTO "trial_params" VALUES(30,4,'LAYOUT',0.0,'{"name": "CategoricalDistribution", "attributes": {"choices": ["plain", "swizzle", "split"]}}');
INSERT INTO "trial_params" VALUES(31,4,'UNROLL',0.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [false, true]}}');
INSERT INTO "trial_params" VALUES(32,4,'CTAS',3.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": 1, "high": 3}}');
INSERT INTO "trial_params" VALUES(33,5,'TILE_M',3.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [16, 32, 64, 128]}}');
INSERT INTO "trial_params" VALUES(34,5,'TILE_N',4.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [16, 32, 48, 64, 96, 128]}}');
INSERT INTO "trial_params" VALUES(35,5,'WARPS',3.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [1, 2, 4, 8]}}');
INSERT INTO "trial_params" VALUES(36,5,'STAGES',1.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": 1, "high": 4}}');
INSERT INTO "trial_params" VALUES(37,5,'PAD',8.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 8, "low": 0, "high": 16}}');
INSERT INTO "trial_params" VALUES(38,5,'LAYOUT',0.0,'{"name": "CategoricalDistribution", "attributes": {"choices": ["plain", "swizzle", "split"]}}');
INSERT INTO "trial_params" VALUES(39,5,'UNROLL',0.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [false, true]}}');
INSERT INTO "trial_params" VALUES(40,5,'CTAS',1.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": 1, "high": 3}}');
INSERT INTO "trial_params" VALUES(41,6,'TILE_M',3.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [16, 32, 64, 128]}}');
INSERT INTO "trial_params" VALUES(42,6,'TILE_N',3.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [16, 32, 48, 64, 96, 128]}}');
INSERT INTO "trial_params" VALUES(43,6,'WARPS',2.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [1, 2, 4, 8]}}');
INSERT INTO "trial_params" VALUES(44,6,'STAGES',1.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": 1, "high": 4}}');
INSERT INTO "trial_params" VALUES(45,6,'PAD',8.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 8, "low": 0, "high": 16}}');
INSERT INTO "trial_params" VALUES(46,6,'LAYOUT',2.0,'{"name": "CategoricalDistribution", "attributes": {"choices": ["plain", "swizzle", "split"]}}');
INSERT INTO "trial_params" VALUES(47,6,'UNROLL',1.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [false, true]}}');
INSERT INTO "trial_params" VALUES(48,6,'CTAS',2.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": 1, "high": 3}}');
INSERT INTO "trial_params" VALUES(49,7,'TILE_M',1.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [16, 32, 64, 128]}}');
INSERT INTO "trial_params" VALUES(50,7,'TILE_N',5.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [16, 32, 48, 64, 96, 128]}}');
INSERT INTO "trial_params" VALUES(51,7,'WARPS',0.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [1, 2, 4, 8]}}');
INSERT INTO "trial_params" VALUES(52,7,'STAGES',4.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": 1, "high": 4}}');
INSERT INTO "trial_params" VALUES(53,7,'PAD',0.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 8, "low": 0, "high": 16}}');
INSERT INTO "trial_params" VALUES(54,7,'LAYOUT',0.0,'{"name": "CategoricalDistribution", "attributes": {"choices": ["plain", "swizzle", "split"]}}');
INSERT INTO "trial_params" VALUES(55,7,'UNROLL',0.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [false, true]}}');
INSERT INTO "trial_params" VALUES(56,7,'CTAS',1.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": 1, "high": 3}}');
INSERT INTO "trial_params" VALUES(57,8,'TILE_M',2.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [16, 32, 64, 128]}}');
INSERT INTO "trial_params" VALUES(58,8,'TILE_N',0.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [16, 32, 48, 64, 96, 128]}}');
INSERT INTO "trial_params" VALUES(59,8,'WARPS',2.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [1, 2, 4, 8]}}');
INSERT INTO "trial_params" VALUES(60,8,'STAGES',1.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": 1, "high": 4}}');
INSERT INTO "trial_params" VALUES(61,8,'PAD',16.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 8, "low": 0, "high": 16}}');
INSERT INTO "trial_params" VALUES(62,8,'LAYOUT',0.0,'{"name": "CategoricalDistribution", "attributes": {"choices": ["plain", "swizzle", "split"]}}');
INSERT INTO "trial_params" VALUES(63,8,'UNROLL',0.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [false, true]}}');
INSERT INTO "trial_params" VALUES(64,8,'CTAS',3.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": 1, "high": 3}}');
CREATE TABLE trial_system_attributes (
	trial_system_attribute_id INTEGER NOT NULL, 
	trial_id INTEGER, 
	"key" VARCHAR(512), 
	value_json TEXT, 
	PRIMARY KEY (trial_system_attribute_id), 
	UNIQUE (trial_id, "key"), 
	FOREIGN KEY(trial_id) REFERENCES trials (trial_id)
);
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
INSERT INTO "trial_user_attributes" VALUES(5,5,'evoengine:status','"ok"');
INSERT INTO "trial_user_attributes" VALUES(6,6,'evoengine:status','"ok"');
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
INSERT INTO "trial_values" VALUES(1,1,0,9.10053097591259430032e+00,'FINITE');
INSERT INTO "trial_values" VALUES(2,2,0,6.39238692946250885995e+00,'FINITE');
INSERT INTO "trial_values" VALUES(3,3,0,6.79043370115796651731e+00,'FINITE');
INSERT INTO "trial_values" VALUES(4,4,0,1.16665830387187181567e+01,'FINITE');
INSERT INTO "trial_values" VALUES(5,5,0,7.87714602919901452082e+00,'FINITE');
INSERT INTO "trial_values" VALUES(6,6,0,7.58784322078115,'FINITE');
INSERT INTO "trial_values" VALUES(7,7,0,1.06937447301743748795e+01,'FINITE');
INSERT INTO "trial_values" VALUES(8,8,0,9.49257291665299796079e+00,'FINITE');
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
INSERT INTO "trials" VALUES(1,0,1,'COMPLETE','2026-11-22 19:09:39.975441','2026-11-22 19:09:39.975441');
INSERT INTO "trials" VALUES(2,1,1,'COMPLETE','2026-11-22 19:09:39.975441','2026-11-22 19:09:39.975441');
INSERT INTO "trials" VALUES(3,2,1,'COMPLETE','2026-11-22 19:09:39.975441','2026-11-22 19:09:39.975441');
INSERT INTO "trials" VALUES(4,3,1,'COMPLETE','2026-11-22 19:09:39.975441','2026-11-22 19:09:39.975441');
INSERT INTO "trials" VALUES(5,4,1,'COMPLETE','2026-11-22 19:09:39.975441','2026-11-22 19:09:39.975441');
INSERT INTO "trials" VALUES(6,5,1,'COMPLETE','2026-11-22 19:09:39.975441','2026-11-22 19:09:39.975441');
INSERT INTO "trials" VALUES(7,6,1,'COMPLETE','2026-11-22 19:09:39.975441','2026-11-22 19:09:39.975441');
INSERT INTO "trials" VALUES(8,7,1,'COMPLETE','2026-11-22 19:09:39.975441','2026-11-22 19:09:39.975441');
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
CREATE INDEX evo_profiles_by_evaluation ON evo_profiles (evaluation_id);
CREATE UNIQUE INDEX ix_studies_study_name ON studies (study_name);
CREATE INDEX ix_trials_study_id ON trials (study_id);
COMMIT;
