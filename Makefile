# `make help` lists the targets. CI (.ci/run) runs these same targets and nothing of its own.

# Nothing compiled names the folder of this clone, so all clones share what is in the cache of Go.
export GOFLAGS := $(GOFLAGS) -trimpath

BIN     := bin
TOOLS   := $(BIN)/tools
# A new Go release means new tools: a linter built by an older Go refuses newer code.
STAMP   := $(TOOLS)/.built-$(shell go env GOVERSION 2>/dev/null)
# The tag of the newest release before the commit at hand; empty before the first release.
RELEASE  = $(shell git describe --tags --match 'v[0-9]*' --abbrev=0 HEAD^ 2>/dev/null)

FUZZTIME    ?= 30s
CRASH_KILLS ?= 200
POWER_CUTS  ?= 50
BRIDGE_MESSAGES ?= 1000
BRIDGE_KILLS ?= 200
HISTORIES   ?= 5000
GLOB_PAIRS  ?= 1000000
BENCH_ARGS  ?=
SHARE       ?= 1
SIM_SEEDS   ?= 10000
HOSTILE_TIME  ?= 60s
HOSTILE_ROUND ?= 400ms
SOAK        ?= 30m
SOAK_DIR    ?= $(BIN)/soak
DASHBOARD_LOAD ?= 60s
GOVULNCHECK ?= v1.1.4

# How many packages are tested at once, in each of two groups: those with the race detector, and the others. Tests wait
# for leases, timeouts and processes, so that together these are more than the processors.
TEST_PACKAGES_AT_A_TIME ?= $(shell getconf _NPROCESSORS_ONLN)
# How many tests of a package run at once. The race detector needs more processor time the more goroutines a process
# has: with four tests at once, those of brokerctl need a third more than with one.
TEST_PARALLEL_RACE ?= $(shell echo $$(( ($$(getconf _NPROCESSORS_ONLN) + 1) / 2 )))
TEST_PARALLEL ?= $(shell echo $$((2 * $$(getconf _NPROCESSORS_ONLN))))
TEST_FLAGS = -vet=off -timeout 60m -p $(TEST_PACKAGES_AT_A_TIME)
# The packages that take longest start first, so that none of them runs alone at the end.
LONG_TESTS := ./cmd/brokerctl ./internal/broker ./internal/app ./client ./internal/locks ./internal/state
LONG_TESTS_NO_RACE := ./internal/web/browsertest ./internal/histories ./internal/hostile ./clients/typescript ./internal/crashtest ./examples/bash ./docs
# Of these, test-postgres runs some tests with many random plays, each on a database of its own: fewer with SHARE.
PLAYS_POSTGRES := ./internal/broker ./internal/tasks ./internal/locks ./internal/state ./internal/auth
# These run without the race detector: packages that start no goroutine; tests of a daemon that is a process of its own;
# browsertest, where Chromium does the work, and whose handlers internal/web tests; and costtest, which counts
# allocations, of which the race detector adds some.
NO_RACE := ^brokerd(/(clients|deploy|docs|examples|scripts|cmd/internal)(/.*)?|/internal/(costtest|crashtest|fault|finding|histories|hostile|jsonform|jsonline|nearest|page|validate|web/browsertest))?$$

PREFIX  ?= /usr/local
DESTDIR ?=

.PHONY: toolchain screenshots dashboard-load hostile soak vulnerabilities help run demo examples build install uninstall release test test-postgres test-replicas fresh stress lint generate bench fuzz crash failover sim mutants bridge globs vendors alerts-check litestream deploy-check vendor
.DEFAULT_GOAL := help

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: build ## build, then run the daemon in the foreground
	$(BIN)/brokerd

demo: build ## watch a small team of agents at work, on a broker of its own
	@$(BIN)/brokerctl demo

examples: build ## run the stories of examples/, each on a broker of its own
	@for story in examples/*/run.sh; do echo; $$story || exit; done

build: toolchain ## bin/brokerd and bin/brokerctl
	go build -o $(BIN)/ ./cmd/brokerd ./cmd/brokerctl

# One sentence each if Go or the C compiler is missing.
toolchain:
	@scripts/toolchain.sh

install: ## the programs, their man pages and completions into PREFIX (/usr/local) below DESTDIR
	@test -x $(BIN)/brokerd && test -x $(BIN)/brokerctl || $(MAKE) build
	scripts/install.sh $(BIN) $(DESTDIR)$(PREFIX)

uninstall: ## remove what make install has installed
	cd $(DESTDIR)$(PREFIX) && rm -f bin/brokerd bin/brokerctl share/man/man1/brokerd*.1 share/man/man1/brokerctl*.1 \
		share/bash-completion/completions/brokerd share/bash-completion/completions/brokerctl \
		share/zsh/site-functions/_brokerd share/zsh/site-functions/_brokerctl \
		share/fish/vendor_completions.d/brokerd.fish share/fish/vendor_completions.d/brokerctl.fish

release: ## archives with static programs for linux amd64 and arm64 in dist/, with bills of materials and checksums; builds twice and compares
	@scripts/release.sh

# The programs that tests start: built once, beside the tests. A program with the race detector sleeps for a second before
# it exits, unless GORACE says otherwise. make lint has the checks of go vet.
test: toolchain ## every test; with the race detector what has goroutines
	@scripts/test-deps.sh
	go build -buildvcs=false -o $(BIN)/test/ ./cmd/brokerd ./cmd/brokerctl ./internal/crashtest/faultd
	@packages=$$(go list ./...) && GORACE=atexit_sleep_ms=0 TEST_PROGRAMS=$(CURDIR)/$(BIN)/test \
		go run ./scripts/testrun \
		-race $(TEST_FLAGS) -parallel $(TEST_PARALLEL_RACE) $(LONG_TESTS) $$(echo "$$packages" | grep -vE '$(NO_RACE)') -- \
		$(TEST_FLAGS) -parallel $(TEST_PARALLEL) $(LONG_TESTS_NO_RACE) $$(echo "$$packages" | grep -E '$(NO_RACE)')

# The packages whose tests keep data on the server if BROKERD_TEST_POSTGRES names one. Those of the programs, of the
# dashboard and of costs see nothing of the store, and backups are SQLite's.
POSTGRES_TESTS = $$(grep -rlE --include='*_test.go' '(testkit\.Store|apptest\.Start)\(' internal client | \
	xargs -n 1 dirname | sort -u | grep -vE '^internal/(backup|costtest|web/browsertest)$$' | sed 's,^,./,' | \
	grep -vE "^($$(echo $(PLAYS_POSTGRES) | tr ' ' '|'))$$")

test-postgres: toolchain ## the tests of the features with their data on a PostgreSQL server (SHARE=8: one test in eight)
	@BROKERD_TEST_POSTGRES_SHARE=$(SHARE) go run ./internal/postgrestest/with \
		go run ./scripts/testrun \
		$(TEST_FLAGS) -parallel $(TEST_PARALLEL) $(PLAYS_POSTGRES) -rapid.checks=$$((100 / $(SHARE))) -- \
		$(TEST_FLAGS) -parallel $(TEST_PARALLEL) ./internal/app $(POSTGRES_TESTS)

# The same tests, each with two replicas: its clients connect to the one that follows.
test-replicas: toolchain ## the tests of the features through a replica that follows (SHARE=8: one test in eight)
	@BROKERD_TEST_REPLICAS=1 $(MAKE) --no-print-directory test-postgres

fresh: ## make run and make test in an empty Debian root, as root on Debian or Ubuntu
	@scripts/fresh.sh

stress: ## every test five times beside four busy loops, with GOMAXPROCS 1, 2, 4, 1 and 2 (STRESS_PACKAGES='./...')
	@scripts/stress.sh

# Without -trimpath: what cgo generates would name the files of another clone, and the rules of the linter name folders.
lint: $(STAMP) ## golangci-lint, buf and gofmt
	GOFLAGS='$(filter-out -trimpath,$(GOFLAGS))' $(TOOLS)/golangci-lint run ./...
	$(TOOLS)/buf lint
	$(if $(RELEASE),$(TOOLS)/buf breaking --against '.git#tag=$(RELEASE)')
	@unformatted=$$(gofmt -l .); test -z "$$unformatted" || { echo "not gofmt'ed: $$unformatted" >&2; exit 1; }

generate: $(STAMP) ## gen/ and clients/python/brokerd/v1 from proto/; docs/brokerctl.md, json.md, message-types.md and limits.md from the programs
	rm -rf gen clients/python/brokerd/v1
	$(TOOLS)/buf generate proto
	$(TOOLS)/buf generate --template internal/worktest/buf.gen.yaml internal/worktest
	@scripts/generate-typescript.sh
	go test -count=1 -run '^Test(Reference|JSONPage)_' ./cmd/brokerctl -update
	go test -count=1 -run '^TestPage_' ./internal/msgtype ./internal/rules -update

vendor: ## internal/web/ui/vendor/preact.js from the npm packages of tools/dashboard: the only step of the dashboard that needs npm
	cd tools/dashboard && npm ci --silent --no-audit --no-fund && npx esbuild vendor.js --bundle --minify --format=esm \
		--target=es2022 --legal-comments=none --log-level=warning \
		--banner:js='/* preact 11.2.0 and @preact/signals 2.11.4: MIT licence; htm 3.1.1: Apache-2.0 licence */' \
		--outfile=../../internal/web/ui/vendor/preact.js

bench: build ## the workloads of `brokerctl bench`, on a broker of their own (BENCH_ARGS='…')
	env -u BROKERD_ADDR -u BROKERD_DATA bin/brokerctl --no-config bench $(BENCH_ARGS)

fuzz: ## every fuzz target, FUZZTIME (30s) each
	FUZZTIME=$(FUZZTIME) scripts/fuzz.sh

crash: ## kill the daemon CRASH_KILLS (200) times on SQLite and on PostgreSQL, and the server a quarter as often; cut its power POWER_CUTS (50) times under load; errors at its first 300 writes and syncs; faults of the server, an idle transaction of 60 s among them; upgrade 1,000,000 messages, and move them to PostgreSQL and back
	CRASH_KILLS=$(CRASH_KILLS) POWER_CUTS=$(POWER_CUTS) CRASH_SEED=$(or $(CRASH_SEED),$(shell date +%s)) FAULT_STEP=1 CLOCK_PATIENCE=1 DAMAGE_PLACES=100 UPGRADE_MESSAGES=1000000 IDLE_SECONDS=60 LOAD_AGENTS=32 \
		go test -count=1 -run '^Test(Crash|PowerCut|Faults|DatabaseFaults|Clock|Damage|Upgrade|Migration)_' -timeout 2h -v ./internal/crashtest/

failover: ## what goes wrong with two replicas and their server, three times each under load, and how long nothing is confirmed
	FAILOVER_ROUNDS=3 LOAD_AGENTS=32 go test -count=1 -run '^TestFailover_' -timeout 1h -v ./internal/crashtest/

mutants: ## check that the tests catch each seeded defect of internal/crashtest/seeded (MUTANTS='skip-a-sync …')
	@scripts/mutants.sh $(MUTANTS)

bridge: ## scripts exchange BRIDGE_MESSAGES (1,000) each way over a bridge that is killed; BRIDGE_KILLS (200) of bridge and daemon
	BRIDGE_MESSAGES=$(BRIDGE_MESSAGES) BRIDGE_KILLS=$(BRIDGE_KILLS) go test -count=1 -run 'TestScripts|TestTraffic' -timeout 2h -v \
		./cmd/brokerctl/bridge/

sim: ## SIM_SEEDS (10,000) simulations of three replicas that lose the lead
	go test -count=1 -timeout 2h -run '^TestSim_' ./internal/replica -seeds $(SIM_SEEDS)

globs: ## compare GLOB_PAIRS (1,000,000) pairs of lock paths with trying every file
	GLOB_PAIRS=$(GLOB_PAIRS) go test -count=1 -run TestOverlaps_AgreesWithTryingEveryFile -timeout 1h -v ./internal/locks/

histories: ## record what concurrent clients see of keys, locks and tokens, HISTORIES (5000) times on SQLite and on PostgreSQL, and check it
	HISTORIES=$(HISTORIES) go test -count=1 -run TestHistories -timeout 2h -v ./internal/histories/

litestream: ## lose the disk of a daemon under load, three times, and continue on the copy of the real Litestream
	@scripts/litestream.sh

deploy-check: ## the manifests, the Compose files and the image of deploy/, with the programs that read them
	@scripts/deploy-check.sh

vendors: ## MCP clients and coding agents from npm against brokerctl (VENDORS='inspector')
	@scripts/vendors.sh $(VENDORS)

hostile: ## attack a daemon, each flood and the fuzzer for HOSTILE_TIME (60s), and measure what another client notices
	HOSTILE_TIME=$(HOSTILE_TIME) HOSTILE_ROUND=$(HOSTILE_ROUND) go test -count=1 -timeout 2h -v ./internal/hostile/

soak: ## load a daemon to half of its saturation for SOAK (30m); record memory, files and latency in SOAK_DIR (bin/soak)
	mkdir -p $(SOAK_DIR)
	SOAK=$(SOAK) SOAK_DIR=$(abspath $(SOAK_DIR)) go test -count=1 -run '^TestSoak_' -timeout 24h -v ./internal/hostile/

dashboard-load: ## measure the dashboard in Chromium at 10,000 messages a second for DASHBOARD_LOAD (60s); it needs an idle machine
	DASHBOARD_LOAD=$(DASHBOARD_LOAD) go test -count=1 -run '^TestLoad_' -timeout 1h -v ./internal/web/browsertest/

screenshots: ## the pictures of docs/dashboard.md, with Chromium
	SCREENSHOTS=$(CURDIR)/docs go test -count=1 -run '^TestScreenshots$$' -v ./internal/web/browsertest/

vulnerabilities: ## govulncheck over both programs, with the database of vuln.go.dev (VULNDB=file:///… for a copy)
	go run golang.org/x/vuln/cmd/govulncheck@$(GOVULNCHECK) $(if $(VULNDB),-db $(VULNDB)) ./...

alerts-check: ## the alert rules of deploy/prometheus and their unit tests, with promtool (Debian: prometheus)
	@if command -v promtool >/dev/null; then \
		cd deploy/prometheus && promtool check rules alerts.yml && promtool test rules alerts_test.yml; \
	else echo "make alerts-check: skipped, because promtool is missing (Debian: apt-get install prometheus)"; fi

# All tools in one build: they share most of their packages.
$(STAMP): tools/go.mod tools/go.sum
	rm -f $(TOOLS)/.built-*
	mkdir -p $(TOOLS)
	go build -C tools -o ../$(TOOLS)/ tool
	touch $@
