# Each target does all of its own set-up. `make check` needs no root; `make
# test`, `make demo` and `make bench` do, and a Debian 12 userland.
#
#   LIGHTER_WORK  where tools and images are kept (default: work/)

export CGO_ENABLED := 0
# All builds and tests have the flag, so that they share the compiled packages: a machine without any compiles each of
# them once, and once more for the race detector.
export GOFLAGS += -trimpath
export LIGHTER_WORK ?= $(CURDIR)/work
GO ?= go

.PHONY: build dist image check house setup test manifests runtimes soak demo peers nydus kubernetes rebuild bench fuzz clean

build:
	$(GO) build -o bin/ ./cmd/lighter ./cmd/lighter-bench

# A release below dist/, for amd64 and arm64: binaries, packages, checksums, SBOMs, manual pages and completions.
# It is made twice, to see that both are the same. The test installs and removes the packages, which needs root.
dist:
	test/setup dist
	deploy/dist/build dist
	GOARCH=arm64 $(GO) vet ./...
	cd deploy/dist && $(GO) vet . && $(GO) test -count=1 -timeout 20m .

# The image that installs Lighter on the nodes of a Kubernetes cluster, and the extension of Talos, for amd64 and arm64,
# as OCI layouts below dist/.
image:
	mkdir -p dist
	deploy/image/build dist/image

# Format, vet, staticcheck, the import table and package docs (test/arch), unit
# tests under the race detector, which needs cgo. The detector does not instrument
# the two packages of SQLite, which is C translated to Go: that would take half of
# the hub's test time. No other package may be excluded: its instances of generic
# functions would be linked into the rest without instrumentation, and the detector
# would report races that do not exist. The vet of go test would analyze all packages again, as the detector's builds.
# No file is excluded by the tags of vet. The package hub takes the longest, and comes first; its tests wait often.
check:
	@unformatted=$$(gofmt -l $$(git ls-files "*.go")); test -z "$$unformatted" || { echo "gofmt: $$unformatted"; exit 1; }
	$(GO) vet -tags e2e,peers,nydus,man,runtimes,kubernetes ./...
	$(GO) tool -modfile=test/tools/go.mod staticcheck ./...
	CGO_ENABLED=1 $(GO) test -race -vet=off '-gcflags=modernc.org/sqlite/lib=-race=false' '-gcflags=modernc.org/libc=-race=false' -timeout 20m -parallel 4 ./hub ./...

# Figures of the code, beside the figures of other projects.
house:
	@$(GO) run ./test/house

# Everything, kernel mounts and containerd included. What the end-to-end tests need is made meanwhile: it mostly waits
# for downloads.
test:
	test/setup check
	test/setup compiler
	$(MAKE) -j 2 setup check
	$(MAKE) build manifests
	test/e2e/run

# The manifests and the charts of nodes and hubs in Kubernetes are rendered, linted, decoded strictly and compared.
manifests:
	cd test/tools/manifests && $(GO) vet ./... && $(GO) test ./...

setup:
	test/setup all base python
	test/setup postgres s3 squid

# Container runtimes that take long to build, on a real kernel: dockerd, buildkitd.
runtimes: setup build
	test/setup docker
	test/setup buildkit
	test/e2e/run runtimes

# The long form of the tests of which `make test` runs a short form. It takes an hour.
soak: setup build
	LIGHTER_SOAK=1 $(GO) test -tags e2e -count=1 -p 1 -timeout 60m -v -exec 'unshare --mount --propagation private' \
		$$(grep -rl LIGHTER_SOAK hub node store test --include='*_test.go' | xargs -n1 dirname | sort -u | sed 's|^|./|')

demo:
	test/setup all sci
	$(MAKE) build
	bin/lighter-bench demo

# The other snapshotters of the benchmark and their converters, and tests with them.
peers:
	test/setup all base
	test/setup peers
	cd bench/stargz && $(GO) vet ./... && $(GO) test ./...
	cd bench/soci && CGO_ENABLED=1 $(GO) vet ./... && CGO_ENABLED=1 $(GO) test ./...
	$(MAKE) build
	$(GO) test -tags peers -count=1 -timeout 20m -exec 'unshare --mount --propagation private' \
		./test/e2e/peers/ ./test/e2e/converters/

# The nydus snapshotter, which needs cargo.
nydus:
	test/setup all base
	test/setup nydus
	cd bench/nydus && $(GO) vet ./... && $(GO) test ./...
	$(GO) test -tags peers,nydus -count=1 -run Nydus -timeout 10m -exec 'unshare --mount --propagation private' ./test/e2e/peers/

# A cluster of one node: control plane, kubelet and containerd. The first time it takes 15 minutes to build them. A pod
# in a user namespace needs the runc that is built for Docker.
kubernetes:
	test/setup all base python
	test/setup docker
	test/setup kubernetes
	$(MAKE) build
	$(GO) test -tags kubernetes -count=1 -timeout 45m -v -exec 'unshare --mount --propagation private' ./test/e2e/kubernetes/

# Which compressors make the layers of images again bit by bit: docs/decisions/blobs.md.
rebuild:
	test/setup all base python
	cd bench/rebuild && $(GO) vet ./... && $(GO) test ./... && $(GO) run . $(LIGHTER_WORK)/images/*

# The last commit whose hub was one process, with its catalog in one file: the benchmark's "before".
BEFORE = 98d3dfe1
bin/before/lighter:
	rm -rf bin/before && mkdir -p bin/before/source
	git archive $(BEFORE) | tar -x -C bin/before/source
	cd bin/before/source && $(GO) build -o .. ./cmd/lighter
	rm -rf bin/before/source

bench: peers bin/before/lighter
	test/setup squid postgres s3
	test/setup docker
	test/setup buildkit
	test/setup all base python gcc sci sci2 ml torch postgres redis nginx tomcat node r
	$(MAKE) build
	bin/lighter-bench
	bin/lighter-bench many
	bin/lighter-bench figures
	bin/lighter-bench hubs --before bin/before/lighter
	$(GO) test -run '^$$' -bench . ./format/... ./store/... ./node/... ./hub/wishlist
	$(GO) test -run '^$$' -bench Answers -benchtime 2500x -count 3 ./hub/hooks

# Each fuzz target for a while: FUZZTIME=10m make fuzz
# Inputs that lead to new code are made smaller in a few runs: by default that takes up to a minute for each, during
# which nothing else is tried.
FUZZTIME ?= 30s
fuzz:
	@for package in $$(grep -rl --include='*_test.go' '^func Fuzz' format hub install node registries store wire | xargs -n1 dirname | sort -u); do \
		for target in $$(grep -ho '^func Fuzz[A-Za-z]*' $$package/*_test.go | cut -c6-); do \
			$(GO) test -run '^$$' -fuzz "^$$target$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 100x ./$$package || exit 1; \
		done; \
	done

clean:
	rm -rf bin dist out
