# Needs CPython 3.11 or newer with its headers, gcc and make. Everything else, Java included, is installed into
# .venv-<version>/, one environment for each purpose. pyproject.toml says what each holds: the dependency group of its
# name, and the wheel with some of its extras.

PYTHON ?= python3
ARGS ?=
BASE ?=
BASE_URL ?= /
WHEEL ?=

version := $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
venv := .venv-$(version)
wheel := dist/.wheel-$(version)
built := *-cp$(subst .,,$(version))-*.whl

# What the wheel is made of. Folders count too, so that it is built again when a file has gone.
sources := $(wildcard setup.py pyproject.toml MANIFEST.in README.md LICENSE) \
  $(shell find csrc timerheap -name __pycache__ -prune -o ! -name '*.so' ! -name _core.c -print)

# Nothing but what is installed, and the folder $(2), can be imported, here and in Spark's Python workers, which start in
# this folder.
installed = env -u PYTHONPATH -u SPARK_HOME PYTHONSAFEPATH=1 $(if $(2),PYTHONPATH=$(2)) \
  PYSPARK_PYTHON=$(CURDIR)/$(venv)/$(1)/bin/python PYSPARK_DRIVER_PYTHON=$(CURDIR)/$(venv)/$(1)/bin/python \
  $(venv)/$(1)/bin/python

# The helpers of the tests, a folder for each kind.
space := $() $()
support := $(subst $(space),:,$(wildcard tests/support/[a-z]*))

# A benchmark, which imports the others and measures processes as some tests do.
measured = env -u SPARK_HOME PYTHONPATH=bench:examples:$(support) PYTHONSAFEPATH=1 $(venv)/bench/bin/python

# Three, since each waits for a fifth of its time. Without the last option, a test that ends its process is run again.
in_processes := --numprocesses=3 --dist=loadfile --max-worker-restart=0

# On the PATH, or among pyenv's, whose shim may be there and yet not run.
find_python = for python in python$$version "$${PYENV_ROOT:-$$HOME/.pyenv}"/versions/$$version.*/bin/python; do \
  "$$python" -c "" 2>/dev/null && echo "$$python" && exit; done; exit 1

# What a module that was compiled with them needs loaded first.
sanitizers = LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libubsan.so)" \
  ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1

fuzzing := -max_len=192 -artifact_prefix=out/

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.SECONDARY:
.PHONY: help demo demo-windows test test-fast test-spark-versions test-spark-checks test-world soak-world lint docs docs-site sanitize coverage valgrind fuzz fuzz-patterns fuzz-changes flink-sql soak soak-heaps soak-cases soak-changes bench bench-heap bench-timeout bench-peers bench-shapes bench-small bench-latency bench-kafka bench-kafka-sink bench-realtime bench-windows bench-asof bench-patterns bench-changes bench-over bench-rules bench-state bench-skew bench-capacity bench-cost bench-processors bench-nexmark bench-choices bench-tight-memory bench-object-store bench-all bench-check tables soak-real-time soak-kills instructions dist test-wheels test-wheel test-arm64 release-check hooks clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-20s %s\n", $$1, $$2 }' Makefile
	@echo
	@echo '  PYTHON=python3.13 chooses the interpreter; ARGS="..." goes to the demo, the bench or pytest.'

demo: $(venv)/demo/.installed ## A year of real flights through a streaming query, checked against pandas
	$(call installed,demo,examples) examples/demo.py $(ARGS)

demo-windows: $(venv)/demo/.installed ## The same year in windows that grow through each day, drawn into out/departures.png
	$(call installed,demo,examples) examples/demo_windows.py --chart out/departures.png $(ARGS)

test-fast: $(venv)/test/.installed ## The quick tests that start neither Spark nor RocksDB
	$(call installed,test) -m pytest -m "not spark and not slow" -k "not rocksdb" $(in_processes) $(ARGS)

test: $(venv)/test/.installed ## All tests and documented examples, against the installed wheel
	$(call installed,test) -m pytest $(in_processes) --no-loadscope-reorder $(ARGS)

spark_versions := 4.1 4.2 4.3

test-spark-versions: $(spark_versions:%=test-spark-%) ## The Spark tests on each version of PySpark that is supported

test-spark-%: $(venv)/spark-%/.installed
	$(call installed,spark-$*) -m pytest tests/spark $(in_processes) --no-loadscope-reorder $(ARGS)

test-spark-checks: $(venv)/test/.installed ## The Spark tests with all that Spark itself can check and repair of a checkpoint
	TIMERHEAP_SPARK_CHECKS=all $(call installed,test) -m pytest tests/spark $(in_processes) --no-loadscope-reorder $(ARGS)

# What runs beside Spark is published for some versions of it; each test runs on the newest that has what it needs.
world_versions := 4.3 4.1

test-world: $(world_versions:%=test-world-%) ## Kafka, Delta, Iceberg, S3 and PostgreSQL beside Spark, where their jars can be fetched

test-world-%: $(venv)/world-%/.installed
	$(call installed,world-$*) -m pytest tests/world -m "not soak" $(ARGS)

soak-world: $(world_versions:%=soak-world-%) ## The same with many kills, and several hosts

soak-world-%: $(venv)/world-%/.installed
	$(call installed,world-$*) -m pytest tests/world -m soak -o faulthandler_timeout=0 $(ARGS)

lint: $(venv)/lint/.installed ## ruff, mypy --strict, stubtest, clang-format, jactionlint
	$(venv)/lint/bin/ruff check
	$(venv)/lint/bin/ruff format --check
	$(venv)/lint/bin/mypy
	cd tests/typing && $(CURDIR)/$(venv)/lint/bin/mypy --strict --config-file= --cache-dir=/dev/null heaps.py
	$(call installed,lint) -m mypy.stubtest timerheap._native._core --ignore-disjoint-bases --mypy-config-file pyproject.toml --allowlist tests/typing/made_by_cython.txt
	$(venv)/lint/bin/clang-format --dry-run -Werror $(wildcard csrc/*.[ch] tests/c/*.[ch] tests/fuzz/*.c bench/*.c)
	$(venv)/lint/bin/jactionlint --profile correctness

docs: $(venv)/lint/wheel/.installed ## The documentation, into out/docs
	rm -rf docs/reference/generated
	$(call installed,lint,$(venv)/lint/wheel) -m sphinx --fail-on-warning --keep-going --nitpicky --quiet -d out/doctrees docs out/docs $(ARGS)

docs-site: docs ## The documentation of every minor version and of the tree, with a switcher, into out/site (BASE_URL=/...)
	$(venv)/lint/bin/python tools/docs_site.py $(BASE_URL)

sanitize: $(venv)/sanitize/.installed ## The C tests, and those of the heaps, the index, the codes, the sums, runs and the row loop, under ASan and UBSan
	$(MAKE) -C tests/c
	$(sanitizers) PYTHONMALLOC=malloc $(call installed,sanitize) -m pytest \
	  $(wildcard tests/native/test_heap*.py tests/native/test_row_*.py) tests/native/test_id_index.py \
	  $(wildcard tests/native/test_code*.py) tests/native/test_sums.py tests/native/test_sorted_runs.py $(ARGS)

coverage: $(venv)/coverage/.installed ## Which lines of Python, Cython and C the tests of test-fast run; ARGS="tests" for all
	$(venv)/coverage/bin/python tools/measure_coverage.py $(ARGS)

valgrind: $(venv)/soak/.installed ## The C tests and a few hundred inputs of the fuzzer under memcheck
	@command -v valgrind >/dev/null || { echo 'valgrind is missing (Debian: apt-get install valgrind)'; exit 1; }
	$(MAKE) -C tests/c valgrind
	PYTHONMALLOC=malloc valgrind --quiet --error-exitcode=1 --suppressions=tests/c/python.supp --trace-children=yes \
	  $(call installed,soak) tests/fuzz/heap_inputs.py 200

fuzz: $(venv)/fuzz/.installed $(venv)/sanitize/.installed ## 200,000 steps of the model, 10 million inputs guided by coverage, 20,000 of key tables, 100,000 of runs
	$(sanitizers) $(call installed,sanitize) tests/fuzz/fuzz_model.py
	mkdir -p out/corpus out/corpus-keys out/corpus-runs
	$(call installed,fuzz) tests/fuzz/fuzz_inputs.py heap_inputs $(fuzzing) -runs=10000000 $(ARGS) out/corpus
	$(call installed,fuzz) tests/fuzz/fuzz_inputs.py key_inputs $(fuzzing) -runs=20000 $(ARGS) out/corpus-keys
	$(call installed,fuzz) tests/fuzz/fuzz_inputs.py run_inputs $(fuzzing) -runs=100000 $(ARGS) out/corpus-runs

fuzz-patterns: $(venv)/test/.installed ## 20,000 random patterns of MATCH_RECOGNIZE against the definition of the standard
	TIMERHEAP_MATCH_CASES=20000 $(call installed,test,$(support)) -m pytest -q tests/spark/patterns -k standard

fuzz-changes: $(venv)/test/.installed ## 20,000 random tables that change under random plans, against a model of SQL
	TIMERHEAP_CHANGE_CASES=20000 $(call installed,test) -m pytest -q --timeout=0 tests/spark/changes/test_random_changes.py $(ARGS)

flink-sql: $(venv)/test/.installed ## All of Flink's tests of SQL, and the answers of Flink that are recorded, as batches and streams; writes their pages
	for page in flink_sql_tests flink_changes; do $(call installed,test,$(support)) tests/support/cases/$$page.py || exit; done
	TIMERHEAP_SHARE=all TIMERHEAP_MATCH_CASES=1 $(call installed,test) -m pytest -q tests/spark/sql/test_flink_*.py \
	  tests/spark/sql/test_sql_docs.py tests/spark/sql/test_mixed_queries.py tests/spark/patterns/test_match_oracles.py $(ARGS)

soak: soak-heaps soak-cases ## A billion operations on the heaps, all of Flink's traces, and all cases

soak-heaps: $(venv)/soak/.installed ## A billion operations on the heaps, in memory that stays flat
	NUMPY_MADVISE_HUGEPAGE=0 $(call installed,soak) tests/fuzz/soak.py $(ARGS)

soak-cases: $(venv)/test/.installed ## All of Flink's traces and all cases of tests, of which `make test` has a share, another one after each commit
	TIMERHEAP_SHARE=all $(call installed,test) -m pytest tests/flink $(in_processes)
	TIMERHEAP_SHARE=all $(call installed,test) -m pytest -m in_turn $(in_processes)

soak-changes: $(venv)/test/.installed ## 200 random plans over changes on Spark, restarted on one checkpoint
	TIMERHEAP_CHANGE_STREAMS=200 TIMERHEAP_SHARE=all $(call installed,test) -m pytest -q --timeout=0 tests/spark/changes/test_random_change_streams.py $(ARGS)

soak-real-time: $(venv)/test/.installed ## Kill all Python workers of queries in real-time mode, four times for each function
	KILLS=4 TIMERHEAP_SHARE=all $(call installed,test) -m pytest -q --timeout=0 tests/spark/real_time/test_operators_in_real_time.py $(ARGS)

soak-kills: $(venv)/test/.installed ## Kill drivers, Python workers and executors; the output must not change
	PYTHONPATH=$(support) PYTHONSAFEPATH=1 $(venv)/test/bin/python tests/support/programs/kill_driver.py $(ARGS)

beside_spark := --variants columns rows spark

bench: bench-heap bench-timeout bench-shapes ## The heaps and the session timeout on Spark, beside their peers; figures go to out/

bench-timeout: $(venv)/bench/.installed ## The session timeout on Spark, beside Spark's own timers and heapq
	$(measured) bench/session_timeout.py --json out/session_timeout.json $(ARGS)
	$(measured) bench/session_timeout.py $(beside_spark) --events 20000 --batches 4 --rounds 2 --json out/session_20000.json
	$(measured) bench/session_timeout.py $(beside_spark) --events 100000 --batches 3 --rounds 1 --json out/session_100000.json

bench-shapes: $(venv)/bench/.installed ## The session timeout with other keys, rows, micro-batches and cores
	$(measured) bench/session_shapes.py --json out/session_shapes.json $(ARGS)

bench-heap: $(venv)/bench/.installed ## The heaps alone, beside heapq and a set
	mkdir -p out
	$(call installed,bench) -m pytest --quiet --benchmark-quiet --benchmark-json=out/heap.json bench/test_heap.py
	$(call installed,bench) bench/report.py out/heap.json

bench-peers: $(venv)/bench/.installed ## The heaps beside heapq, sortedcontainers and, with a JDK, Flink; drawn into out/
	PYTHONPATH=bench PYTHONSAFEPATH=1 $(venv)/bench/bin/python bench/compare.py --json out/peers.json --plots out $(ARGS)

bench-windows: $(venv)/bench/.installed ## TUMBLE and HOP beside Spark's own window()
	$(measured) bench/windows.py --json out/windows.json $(ARGS)

bench-asof: $(venv)/bench/.installed ## As-of joins beside Spark's window, DuckDB, Polars, process_two and Flink's temporal join
	$(measured) bench/asof.py --json out/asof.json $(ARGS)
	$(measured) bench/asof_flink.py --json out/asof_flink.json $(ARGS)

bench-over: $(venv)/bench/.installed ## LAG, LEAD and running sums OVER rows beside Spark's own and DuckDB
	$(measured) bench/over.py --json out/over.json $(ARGS)

bench-rules: $(venv)/bench/.installed ## Five rules over one exchange of rows beside one rule, as a batch and as a stream
	$(measured) bench/rules.py --json out/rules.json $(ARGS)

bench-patterns: $(venv)/bench/.installed ## MATCH_RECOGNIZE beside process() and Flink: four patterns, 2 million rows
	$(measured) bench/patterns.py --flink --json out/patterns.json $(ARGS)

bench-changes: $(venv)/bench/.installed ## Results that change beside Spark's update mode, and beside Flink
	$(measured) bench/changes.py --json out/changes.json $(ARGS)
	$(measured) bench/changes_flink.py --json out/changes_flink.json $(ARGS)

bench-skew: $(venv)/bench/.installed ## Key groups under skew: a key of 1M timers, lists of 1e5, 10,000 channels
	$(measured) bench/skew.py --json out/skew.json $(ARGS)

bench-state: $(venv)/bench/.installed ## What a micro-batch costs with 1e5, 1e6 and 1e7 pending timers
	$(measured) bench/state.py --json out/state.json $(ARGS)

bench-capacity: $(venv)/bench/.installed ## What 5e6 and 2e7 keys take, live and in the checkpoint, and loads
	$(measured) bench/capacity.py --json out/capacity.json $(ARGS)

bench-cost: $(venv)/bench/.installed ## Cores of a query by rate and trigger, and many small queries beside one
	$(measured) bench/cost.py --json out/cost.json $(ARGS)

bench-small: $(venv)/bench/.installed ## Micro-batches of 200 and of 10,000 rows beside Spark's own groupBy().count()
	mkdir -p out
	$(measured) bench/latency.py --rates --batches 50 --variants mapInArrow no-op "packed no-op" columns \
	  columns-arrival rows --json out/small_batches.json $(ARGS)

bench-latency: $(venv)/bench/.installed ## Small and idle micro-batches, and from a row's arrival to its result, beside Spark
	mkdir -p out
	$(measured) bench/latency.py --json out/latency.json $(ARGS)
	$(measured) bench/first_contact.py --json out/first_contact.json

bench-kafka: $(venv)/world-4.3/.installed ## From Kafka to Kafka beside Flink and Spark's own operator; needs a JDK
	env -u SPARK_HOME PYTHONPATH=bench:examples:$(support) PYTHONSAFEPATH=1 $(venv)/world-4.3/bin/python \
	  bench/kafka_latency.py --json out/kafka.json $(ARGS)
	env -u SPARK_HOME PYTHONPATH=bench:examples:$(support) PYTHONSAFEPATH=1 $(venv)/world-4.3/bin/python \
	  bench/kafka_latency.py --variants real-time-rows real-time-columns flink --rates 1000 10000 \
	  --json out/kafka_real_time.json $(ARGS)

bench-kafka-sink: $(venv)/bench/.installed ## Rows into Kafka once each, beside Spark's own sink
	$(measured) bench/kafka_sink.py --json out/kafka_sink.json $(ARGS)

bench-realtime: $(venv)/bench/.installed ## From a timer's due time to its result in real-time mode, beside micro-batches
	mkdir -p out
	$(measured) bench/real_time.py --json out/real_time.json $(ARGS)
	$(measured) bench/many_timers.py --json out/many_timers.json

bench-processors: $(venv)/bench/.installed ## Stateful processors in timerheap beside Spark's own transformWithState
	mkdir -p out
	$(measured) bench/processors.py --json out/processors.json $(ARGS)

bench-nexmark: $(venv)/bench/.installed ## Nexmark's 23 queries beside Flink, on the same files
	$(measured) -m nexmark --json out/nexmark.json $(ARGS)

bench-choices: $(venv)/bench/.installed ## What settings are worth at 1,000 rows a second, from a row to its result
	$(measured) bench/latency_choices.py --json out/latency_choices.json $(ARGS)

bench-tight-memory: $(venv)/bench/.installed ## Key groups larger than the memory of their workers; needs root and cgroups
	$(measured) bench/tight_groups.py --json out/tight_groups.json
	$(measured) bench/tight_groups.py --settles --json out/tight_groups_settled.json
	$(measured) bench/tight_memory.py --json out/tight_memory.json $(ARGS)

# Shorter than each by itself, so that all end within two hours on two cores.
bench-all: ## Every benchmark whose figures the documentation has, and whether a ratio got worse; tables takes them
	$(MAKE) bench-timeout ARGS="--rounds 3"
	$(MAKE) bench-latency bench-choices bench-over bench-patterns bench-skew bench-realtime ARGS=
	$(MAKE) bench-tight-memory ARGS="--batches 5"
	$(MAKE) bench-windows ARGS="--batches 3"
	$(MAKE) bench-asof ARGS="--events 2000000 --rounds 1"
	$(MAKE) bench-processors ARGS="--rows 10000 --batches 3 --warm-up 6"
	$(MAKE) bench-state ARGS="--standing 1e5 1e6 --batches 15 --masters local[2] --paused 0 --restarts 0"
	$(MAKE) bench-nexmark ARGS="--events 2000000 --rounds 1"
	$(MAKE) bench-kafka ARGS="--seconds 10 --rounds 1"
	$(MAKE) bench-peers ARGS="--rounds 3"
	$(measured) bench/plot.py out/peers.json bench/plots
	$(MAKE) bench-check

bench-check: ## Show the ratios of out/ to peers; fail if one is more than 5 % above that of the documentation
	$(PYTHON) bench/summary.py out

tables: ## Put the figures of out/ into the pages of the documentation and the README
	$(PYTHON) bench/tables.py out

bench-object-store: $(venv)/world-4.3/.installed ## Requests to an object store for each micro-batch, and their price
	$(call installed,world-4.3,bench:$(support)) bench/object_store.py --json out/object_store.json $(ARGS)

instructions: $(venv)/soak/.installed ## Fail if an operation takes 5 % more instructions than at the base commit (BASE=...)
	$(call installed,soak) bench/instructions.py $(BASE)

dist: $(wheel) ## Build the sdist, and from it the wheel, into dist/

# The environment is made anew. What tests/core.txt leaves out needs more than the wheel and NumPy.
test-wheels: ## Build and test a wheel on every Python that is found, with NumPy alone
	@set -e; for version in 3.11 3.12 3.13 3.14; do \
	  python=$$($(find_python)) || { echo "Python $$version: none runs here, skipped"; continue; }; \
	  rm -rf .venv-$$version/test-core; \
	  $(MAKE) --no-print-directory PYTHON=$$python test-wheel; \
	done

test-wheel: $(venv)/test-core/.installed
	$(call installed,test-core) -m pytest @tests/core.txt $(ARGS)

test-arm64: $(venv)/build/pyvenv.cfg ## A wheel for aarch64 (or WHEEL=...) and its tests, under qemu; needs Debian and root
	WHEEL=$(WHEEL) tests/arm64/run.sh $(venv)/build/bin/python $(ARGS)

release-check: $(venv)/release/.ready ## Wheels for x86_64 and aarch64, glibc and musl, sdist, SBOM, checksums: built twice, checked
	$(venv)/release/bin/python tools/release.py $(ARGS)

# The tools alone: the wheels that they build are tested in environments of their own.
$(venv)/release/.ready: pyproject.toml | $(venv)/release/pyvenv.cfg
	$(@D)/bin/python -m pip install --quiet --upgrade --group release
	touch $@

hooks: $(venv)/lint/.installed ## Run lint before every git commit
	$(venv)/lint/bin/pre-commit install

clean: ## Remove everything that make has made
	rm -rf .venv-* dist build timerheap.egg-info timerheap/_native/_core.c timerheap/_native/*.so \
	  .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks spark-warehouse out docs/reference/generated

$(wheel): $(sources) | $(venv)/build/pyvenv.cfg
	$(venv)/build/bin/python -m pip install --quiet build
	mkdir -p dist
	rm -f dist/*.tar.gz dist/$(built)
	$(venv)/build/bin/python -m build >dist/build.log 2>&1 || { cat dist/build.log; exit 1; }
	touch $@

# The wheel's extras in each environment.
extras_demo := [inspect,java]
extras_test := [inspect,java,prometheus,rocksdb,sketches,sql]
$(foreach version,$(spark_versions),$(eval extras_spark-$(version) := $(extras_test)))
$(foreach version,$(world_versions),$(eval extras_world-$(version) := [spark,java,prometheus]))
extras_coverage := $(extras_test)
extras_bench := [spark,java,rocksdb,sql]
extras_fuzz := [spark]
extras_lint := [inspect,java,kafka,prometheus,rocksdb,sql]

$(venv)/%/.installed: $(wheel) | $(venv)/%/pyvenv.cfg
	$(call install,$*,$(built))

# Checks the tree, and of the wheel only the compiled module, so that a change of Python code builds no wheel first.
$(venv)/lint/.installed: pyproject.toml $(filter csrc/% timerheap/_native/%,$(sources)) | $(venv)/lint/pyvenv.cfg
	$(MAKE) $(wheel)
	$(call install,lint,$(built))

# The documentation is made of the docstrings of the wheel: the present one, beside what lint has installed.
$(venv)/lint/wheel/.installed: $(wheel) | $(venv)/lint/.installed
	rm -rf $(@D)
	$(venv)/lint/bin/python -m pip install --quiet --no-deps --target $(@D) "$$(ls dist/$(built))"
	touch $@

# Compiled anew from the sdist: neither the tree's build folder nor pip's cache knows which flags were used.
$(venv)/sanitize/.installed: $(wheel) | $(venv)/sanitize/pyvenv.cfg
	$(call install,sanitize,*.tar.gz,TIMERHEAP_SANITIZE=1 PIP_NO_CACHE_DIR=1)

$(venv)/fuzz/.installed: $(wheel) | $(venv)/fuzz/pyvenv.cfg
	$(call install,fuzz,*.tar.gz,TIMERHEAP_FUZZ=1 PIP_NO_CACHE_DIR=1)

$(venv)/%/pyvenv.cfg:
	@$(PYTHON) -c 'import os, sys, sysconfig; v = sys.version_info[:2]; \
	  v < (3, 11) and sys.exit("timerheap needs CPython 3.11 or newer, $(PYTHON) is %d.%d: try make PYTHON=python3.13" % v); \
	  header = sysconfig.get_path("include") + "/Python.h"; \
	  os.path.exists(header) or sys.exit("no %s: install the headers of $(PYTHON) (Debian: python3-dev)" % header)'
	$(PYTHON) -m venv --upgrade-deps $(@D)

# pip leaves a package alone whose version has not changed, so an older timerheap goes first.
define install
$(@D)/bin/python -m pip uninstall -qq --yes timerheap
$(3) $(@D)/bin/python -m pip install --quiet --group $(1) "$$(ls dist/$(2))$(extras_$(1))"
touch $@
endef
