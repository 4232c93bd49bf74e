// Package arch checks rules for the structure of the sources: which of our packages each package
// imports, which packages of other projects it may import, and that each package that has more than
// tests has a doc comment. It reads the sources and builds nothing.
package arch

import (
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// root is the repository's root, seen from this package.
const root = "../.."

// table has a row for each of our own packages. A row lists exactly those of our packages that the
// row's package imports, so that a reviewer sees each new and each removed import. After a bar
// follow the packages that only its tests import. Tests of all packages may import packages of
// format and test/testkit; rows do not list these.
const table = `
bench: buildinfo cmd/command test/testkit/layout test/testkit/site test/testkit/workdir wire
bench/figures: bench format/chunk node/control node/keeper node/report sleep test/testkit/buildkitd
	test/testkit/dockerd test/testkit/fswalk test/testkit/layout test/testkit/pods test/testkit/site
	test/testkit/workdir wire
bench/hubs: bench format/chunk format/index sleep store store/origin test/testkit/catalogtest
	test/testkit/layout test/testkit/postgres test/testkit/s3 wire wire/client
bench/many: bench format/chunk format/trace node/fuse node/mount node/prefetch node/record node/resolver
	node/trees store store/disk store/origin test/testkit/site wire/client | hub store/registry wire
bench/plot:
bench/starts: bench bench/plot format/index test/testkit/site test/testkit/workdir
buildinfo:
bytesize:
cmd/command:
cmd/lighter: buildinfo bytesize cmd/command deploy durable format/chunk format/index format/pack format/trace
	format/tree hub hub/backup hub/catalog hub/retention hub/rootdir install install/buildkit install/containerd
	install/docker install/kubernetes install/kubernetes/agent install/podman install/pullthrough install/systemd
	logqueue mirror node node/binds node/bundle node/completion node/container node/control node/directory node/doctor
	node/front/containerd/blobs node/health node/imagecache node/keeper node/ondemand node/preheat node/report
	node/resolver node/spec node/standalone node/takeover nodejobs sleep store/attachment store/conversion store/disk
	store/registry wire wire/client | hub/registries node/device node/direct node/fuse node/mount node/trees store/origin
cmd/lighter-bench: bench bench/figures bench/hubs bench/many bench/starts cmd/command
deploy:
deploy/image:
durable:
format/attached: format/chunk format/compress format/index format/layer format/pack
format/chunk:
format/compress: format/chunk
format/deflate:
format/erofs: format/tree
format/guess: format/chunk format/erofs format/index format/trace format/tree
format/index: format/chunk format/erofs format/tree
format/layer: format/chunk format/compress format/deflate format/index format/tree
format/layer/audit: format/chunk format/compress format/layer format/tree | format/soci format/stargz
format/layer/survey: format/chunk format/compress format/deflate format/layer format/tree
format/pack: format/chunk format/compress
format/plan: format/chunk format/erofs format/index format/trace
format/soci: format/chunk format/deflate format/layer format/tree
format/stargz: format/chunk format/compress format/layer format/tree
format/trace: format/chunk format/erofs format/index
format/tree: format/chunk
hub: buildinfo bytesize format/index format/tree hub/access hub/admin hub/answer hub/attach hub/away hub/blobs hub/catalog
	hub/collect hub/encoder hub/events hub/expiry hub/export hub/fsck hub/holders hub/hooks hub/images hub/ingest
	hub/jobs hub/names hub/objects hub/outage hub/publish hub/pull hub/pullthrough hub/pushthrough hub/quota
	hub/registries hub/registry hub/report hub/retention hub/rootdir hub/serve hub/space hub/startup hub/uploads
	hub/upstream hub/verify hub/wants hub/wishlist logqueue renewed socket wire wire/pattern | format/attached
	format/compress format/pack hub/backup mirror registries store store/attachment store/origin
	store/repository wire/client
hub/access: wire
hub/admin: format/chunk format/index format/trace hub/answer hub/catalog hub/report hub/retention wire
hub/answer: format/chunk format/trace hub/away hub/catalog hub/objects hub/pull hub/registry hub/report wire
hub/attach: format/attached format/chunk format/compress format/index format/layer format/layer/survey format/tree
	hub/catalog hub/jobs hub/objects hub/oci hub/pull hub/registries hub/startup registries/push sleep wire
hub/away: sleep
hub/backup: durable format/chunk hub/catalog hub/objects hub/rootdir sleep wire | hub/registry
hub/blobs: hub/away hub/catalog hub/images hub/oci hub/registry hub/report hub/upstream wire
hub/catalog: format/chunk format/index hub/away hub/catalog/database hub/catalog/numberset sleep wire | hub/report
hub/catalog/database: hub/away sleep
hub/catalog/numberset:
hub/collect: format/chunk format/index format/pack hub/away hub/blobs hub/catalog hub/encoder hub/holders
	hub/jobs hub/objects hub/publish hub/report sleep wire
hub/encoder: format/compress format/pack
hub/events: hub/catalog hub/jobs hub/report public renewed sleep wire wire/pattern
hub/export: format/chunk format/compress format/index format/pack hub/away hub/catalog hub/jobs hub/objects
	mirror/files wire
hub/expiry: hub/away hub/catalog hub/jobs hub/report hub/retention wire
hub/fsck: format/chunk format/index format/tree hub/away hub/catalog hub/ingest hub/jobs hub/objects hub/oci
	hub/publish hub/registry hub/report sleep wire
hub/holders: format/chunk hub/catalog hub/report sleep wire
hub/hooks: hub/answer hub/catalog hub/jobs hub/report renewed sleep wire wire/pattern
hub/images: hub/away hub/catalog hub/ingest hub/jobs hub/names hub/oci hub/pull hub/quota hub/registries
	hub/registry hub/report wire
hub/ingest: format/chunk format/compress format/index format/pack format/tree hub/catalog hub/encoder hub/jobs
	hub/objects hub/oci hub/publish hub/registry hub/report sleep wire
hub/jobs: hub/away hub/catalog hub/report sleep wire
hub/names: hub/away hub/catalog hub/jobs hub/oci hub/registry hub/report sleep wire
hub/objects: durable format/chunk format/compress format/index format/pack hub/away
hub/oci: hub/registry
hub/publish: format/chunk hub/catalog hub/objects sleep
hub/outage: hub/away hub/report
hub/pull: hub/oci hub/registry hub/report registries registries/push sleep wire
hub/pullthrough: hub/oci hub/pull hub/registry hub/report wire wire/pattern
hub/pushthrough: hub/oci hub/pullthrough hub/registries hub/registry hub/report hub/uploads sleep wire
hub/quota: bytesize hub/catalog hub/oci hub/registry wire
hub/registries: hub/pull public registries registries/push wire wire/pattern
hub/registry: hub/away hub/registry/bucket hub/report sleep wire
hub/registry/bucket: hub/objects
hub/report: wire
hub/repositories: registries/push
hub/retention: wire/pattern
hub/rootdir: durable wire
hub/serve: format/chunk format/index format/trace hub/answer hub/catalog hub/objects hub/startup wire | hub/holders
hub/space: hub/jobs sleep
hub/startup: format/chunk format/compress format/erofs format/guess format/index format/pack format/plan
	format/trace hub/catalog hub/encoder hub/jobs hub/objects hub/publish hub/report sleep wire
hub/uploads: hub/ingest hub/rootdir sleep
hub/upstream: hub/catalog hub/pull hub/registries hub/registry hub/rootdir | hub/report
hub/verify: format/chunk format/index format/pack format/tree hub/away hub/catalog hub/ingest hub/jobs
	hub/objects hub/oci hub/publish hub/registry hub/report wire
hub/wants: hub/catalog hub/images hub/jobs hub/pull hub/registries hub/registry hub/report sleep wire
hub/wishlist: hub/catalog hub/jobs hub/pull hub/report hub/repositories hub/wants sleep wire wire/pattern
	| hub/images hub/registries
install: durable node/control node/mount sleep
install/buildkit: install install/marks install/tomlfile install/tomltext node/doctor node/front/containerd proc
install/containerd: install install/marks install/pullthrough install/tomlfile install/tomltext node node/doctor proc
install/docker: install install/jsontext node/doctor proc
install/jsontext:
install/kubernetes: deploy durable install install/containerd install/systemd node node/control node/doctor
	node/front/containerd proc sleep
install/kubernetes/agent: install/kubernetes node/control node/report sleep
install/marks:
install/podman: install install/marks install/pullthrough install/tomlfile install/tomltext node | node/imagestore
install/pullthrough: install install/marks install/tomlfile install/tomltext
install/systemd: deploy install install/marks node
install/tomlfile: install install/marks install/tomltext
install/tomltext: install/marks
logqueue:
mirror: format/chunk format/compress format/index format/pack mirror/files store store/origin wire wire/client
mirror/files: format/chunk format/index format/pack wire
node: buildinfo bytesize durable format/chunk format/guess format/index format/trace node/apptainer node/binds
	node/completion node/control node/direct node/directory node/front/containerd node/front/containerd/blobs
	node/front/containerd/differ node/health node/held node/imagecache node/imageconfig node/imagestore
	node/keeper node/layerblob node/memory node/monitor node/mount node/ondemand node/prefetch node/preheat
	node/pullsecrets node/record node/report node/resolver node/takeover node/trees registries sleep socket
	store store/disk store/origin store/repository wire wire/client wire/pattern
node/apptainer:
node/binds: durable node/mount node/platform wire
node/bundle: bytesize durable node node/binds node/control node/imagestore node/mount node/spec node/standalone
	store/registry wire
node/completion: format/chunk node/mount node/trees sleep store/disk
node/container: durable node/bundle node/mount proc sleep
node/control: buildinfo durable node/binds node/completion node/imagecache node/keeper node/ondemand node/preheat
	node/report node/takeover socket
node/device: format/chunk format/index node/fuse | store store/origin wire/client
node/direct: durable format/attached format/chunk format/compress format/guess format/index format/layer
	format/layer/audit format/layer/survey format/pack format/soci format/stargz format/tree node/resolver
	registries sleep store store/attachment store/repository wire wire/pattern | registries/push store/registry
node/directory: durable format/chunk node/flight node/killed node/mount node/platform wire
node/doctor: buildinfo bytesize format/index format/tree node node/control node/front/containerd node/fuse node/mount
	node/report proc store/disk store/origin wire wire/client | durable node/binds node/directory
	node/front/containerd/blobs
node/flight:
node/front/containerd: durable format/guess node/resolver proc | socket
node/front/containerd/blobs: durable format/chunk node/flight node/killed node/layerblob node/mount sleep wire | format/index
node/front/containerd/differ:
node/fuse: format/chunk node/killed | node/device store store/origin wire/client
node/health: node/fuse node/mount
node/held: durable format/chunk sleep wire wire/client
node/imagecache: format/chunk node/completion node/trees sleep store/disk
node/imageconfig: durable format/chunk format/index wire
node/imagestore: durable format/chunk format/compress node/directory node/imageconfig node/layerblob sleep store wire
	wire/pattern
node/keeper: durable
node/killed:
node/layerblob: format/chunk format/index sleep wire
node/memory:
node/monitor: buildinfo logqueue node/directory node/front/containerd/blobs node/fuse node/mount node/report socket |
	store store/origin
node/mount: format/chunk format/guess format/index format/tree node/device node/fuse node/record node/trees sleep | node/prefetch
node/ondemand: format/chunk format/trace node/record
node/platform: wire
node/prefetch: format/chunk format/erofs format/guess format/index format/trace node/device sleep | format/tree store
node/preheat: format/chunk node/binds node/completion | wire
node/pullsecrets: registries sleep
node/record: format/chunk format/trace node/device sleep
node/report: durable format/chunk node/binds node/completion node/direct node/directory node/front/containerd
	node/front/containerd/blobs node/held node/imagestore node/mount node/prefetch node/record node/resolver
	node/takeover node/trees store store/disk store/origin | node/device
node/resolver: durable format/chunk format/index node/flight sleep store/origin wire | wire/client
node/spec:
node/standalone: durable format/chunk node node/binds node/control node/keeper node/mount
node/takeover: durable node/fuse node/keeper node/mount proc sleep
node/trees: durable format/chunk format/erofs format/index format/layer format/trace node/flight node/fuse node/prefetch sleep
	wire/client | store/disk
nodejobs: sleep
proc:
public: wire
registries: public renewed sleep wire
registries/push:
renewed:
sleep:
socket: proc
store: format/chunk format/pack sleep
store/attachment: format/attached format/chunk format/compress format/erofs format/guess format/index
	format/layer format/layer/survey format/pack format/plan format/trace format/tree registries/push store
	store/registry store/repository
store/conversion: durable format/chunk format/compress format/soci format/stargz format/trace format/tree store/registry
store/disk: durable format/chunk store
store/origin: format/chunk format/compress format/index format/pack format/trace proc sleep store wire wire/client
store/registry: registries registries/push store/repository wire
store/repository: format/chunk registries registries/push sleep store
test/arch:
test/compat: | durable hub hub/events hub/hooks node/binds node/control node/directory node/fuse node/prefetch node/resolver node/trees
	store store/disk store/origin wire wire/client
test/e2e: | hub hub/registries format/guess node/front/containerd node/fuse node/resolver socket wire wire/client
test/e2e/bench: | bench/starts
test/e2e/bounds: | node/control
test/e2e/buildkit: | install node/front/containerd wire
test/e2e/commands: | mirror wire wire/client
test/e2e/containers: | node/control proc
test/e2e/converters:
test/e2e/direct: | node/report sleep
test/e2e/docker: | install node/doctor node/report wire
test/e2e/hubs: | install install/pullthrough wire
test/e2e/kubernetes: | node/preheat node/pullsecrets node/report nodejobs wire/client
test/e2e/network: | node/report
test/e2e/node: | node/binds node/control node/directory node/imagecache node/keeper node/mount node/report node/resolver store/disk
test/e2e/peers:
test/e2e/podman:
test/e2e/soak: | node/control node/health node/keeper node/mount node/report
test/e2e/system: | install node node/doctor node/front/containerd node/front/containerd/blobs node/keeper node/mount
	node/preheat node/report
test/e2e/versions:
test/house:
test/testkit/buildkitd: node/front/containerd test/testkit/site test/testkit/workdir
test/testkit/cachetest: format/chunk store
test/testkit/catalogtest: format/chunk format/index hub/catalog wire
test/testkit/certificate:
test/testkit/cluster: test/testkit/site test/testkit/workdir
test/testkit/distribution: test/testkit/certificate test/testkit/eventually test/testkit/port
	test/testkit/workdir
test/testkit/eventually:
test/testkit/faultfs:
test/testkit/filetree: format/chunk format/index format/tree
test/testkit/dockerd: test/testkit/site test/testkit/workdir
test/testkit/example:
test/testkit/fswalk:
test/testkit/golden:
test/testkit/history: test/testkit/workdir
test/testkit/images: test/testkit/layout test/testkit/site test/testkit/tarball test/testkit/workdir
test/testkit/immutable:
test/testkit/journal: node/fuse
test/testkit/layout: format/compress format/stargz
test/testkit/link:
test/testkit/objectstest: format/chunk format/pack hub/objects
test/testkit/port:
test/testkit/pods: test/testkit/layout test/testkit/site test/testkit/workdir
test/testkit/postgres: test/testkit/port
test/testkit/registrytest:
test/testkit/s3: test/testkit/port
test/testkit/printed:
test/testkit/referrers: test/testkit/site
test/testkit/site: format/index node/control node/keeper proc sleep test/testkit/link test/testkit/workdir
	wire wire/client
test/testkit/sitetest: node/report test/testkit/fswalk test/testkit/site
test/testkit/socketdir:
test/testkit/sourcetest: format/chunk store test/testkit/cachetest
test/testkit/systemctl:
test/testkit/systemd: test/testkit/site
test/testkit/tarball:
test/testkit/unprivileged:
test/testkit/wrongclock:
test/testkit/workdir:
wire: format/chunk format/index
wire/client: format/chunk format/index format/trace renewed wire | store store/origin
wire/pattern:
`

// row is one package's line of the table.
type row struct{ imports, tests []string }

func parseTable(t *testing.T) map[string]row {
	t.Helper()
	rows := map[string]row{}
	for line := range strings.Lines(strings.ReplaceAll(strings.TrimSpace(table), "\n\t", " ")) {
		pkg, rest, ok := strings.Cut(line, ":")
		if _, twice := rows[pkg]; !ok || twice {
			t.Fatalf("the import table has a bad line, or a package twice: %q", line)
		}
		imports, tests, _ := strings.Cut(rest, "|")
		rows[pkg] = row{strings.Fields(imports), strings.Fields(tests)}
	}
	return rows
}

// confined lists packages of other projects (path) that only a few of our packages (only) may
// import, with the reason. So a change of such a package affects only these few. Tests and packages
// below test may import any package.
var confined = []struct {
	path, only, why string
}{
	{"github.com/containerd/containerd", "node/front/containerd node/spec node/bundle",
		"containerd's types stop at the snapshotter, and where its containers and its unpacking are imitated"},
	{"github.com/google/flatbuffers", "format/soci", "a format of others; Lighter's own formats have no such part"},
	{"database/sql", "hub/catalog/database", "the catalog's statements run on both databases"},
	{"modernc.org/sqlite", "hub/catalog/database", "the catalog's statements run on both databases"},
	{"github.com/jackc/pgx", "hub/catalog/database", "the catalog's statements run on both databases"},
	{"github.com/pressly/goose", "hub/catalog/database", "migrations run where the databases are known"},
	{"github.com/hanwen/go-fuse", "node/fuse node/directory node/front/containerd/blobs node/killed",
		"the FUSE protocol stops at its servers"},
	{"github.com/google/go-containerregistry", "registries store/registry store/repository hub",
		"registry libraries belong to the clients of registries and the hub's OCI side"},
	{"github.com/distribution/distribution", "hub", "the hub's OCI side"},
	{"gocloud.dev", "hub", "object storage is the hub's"},
	{"github.com/spf13/cobra", "cmd", "flags are the command's"},
	{"github.com/pelletier/go-toml/v2/unstable", "install/tomltext", "its interface may change"},
	{"github.com/rogpeppe/go-internal", "install", "changes of files are shown in one place"},
	{"github.com/moby/sys/mountinfo", "node/mount", "the kernel's mount table is read in one place"},
	{"github.com/prometheus", "node hub buildinfo", "metrics are made where the figures are put together"},
}

// sources calls fn for each Go file, with its package's path from the root.
func sources(t *testing.T, fn func(pkg, file string)) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		if entry.IsDir() {
			base := entry.Name()
			_, isModule := os.Stat(filepath.Join(path, "go.mod"))
			if rel != "." && (strings.HasPrefix(base, ".") || base == "work" || base == "out" || base == "testdata" ||
				isModule == nil) {
				return filepath.SkipDir
			}
			return nil
		}
		if strings.HasSuffix(rel, ".go") {
			fn(filepath.ToSlash(filepath.Dir(rel)), path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// within reports whether pkg is place or lies below it.
func within(pkg, place string) bool { return pkg == place || strings.HasPrefix(pkg, place+"/") }

func TestEachPackageImportsWhatTheTableSays(t *testing.T) {
	rows := parseTable(t)
	imported, byTests := map[string]map[string]bool{}, map[string]map[string]bool{} // by package
	sources(t, func(pkg, path string) {
		isTest := strings.HasSuffix(path, "_test.go")
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		if err != nil {
			t.Error(err)
			return
		}
		if imported[pkg] == nil {
			imported[pkg], byTests[pkg] = map[string]bool{}, map[string]bool{}
		}
		for _, spec := range file.Imports {
			name, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				t.Error(err)
				continue
			}
			own, isOwn := strings.CutPrefix(name, "lighter/")
			switch {
			case isOwn && isTest:
				byTests[pkg][own] = true
				checkTestImport(t, rows[pkg], pkg, own, path)
			case isOwn:
				imported[pkg][own] = true
			case !isTest && !within(pkg, "test"):
				checkConfined(t, pkg, name, path)
			}
		}
	})
	if len(imported) < 30 {
		t.Fatalf("only %d packages were seen: this test looks in the wrong place", len(imported))
	}
	for pkg, own := range imported {
		want, ok := rows[pkg]
		if !ok {
			t.Errorf("package %s has no row in the import table", pkg)
			continue
		}
		if got := slices.Sorted(maps.Keys(own)); !slices.Equal(got, want.imports) {
			t.Errorf("package %s imports\n\t%s\nthe import table says\n\t%s", pkg, strings.Join(got, " "),
				strings.Join(want.imports, " "))
		}
		for _, only := range want.tests {
			if own[only] || !byTests[pkg][only] {
				t.Errorf("the import table lists %s after the bar for %s: its tests do not import it, or its other "+
					"files do, too", only, pkg)
			}
		}
	}
	for pkg := range rows {
		if imported[pkg] == nil {
			t.Errorf("the import table has a row for %s, which is no package", pkg)
		}
	}
}

// The product imports no package of the benchmarks and the tests.
func TestProductImportsNoBenchmarkAndNoTest(t *testing.T) {
	rows := parseTable(t)
	seen := map[string]bool{}
	var visit func(pkg, from string)
	visit = func(pkg, from string) {
		if within(pkg, "bench") || within(pkg, "test") {
			t.Errorf("the product imports %s, which imports %s", from, pkg)
		}
		if seen[pkg] {
			return
		}
		seen[pkg] = true
		for _, own := range rows[pkg].imports {
			visit(own, pkg)
		}
	}
	visit("cmd/lighter", "")
	if len(seen) < 20 {
		t.Fatalf("the product imports only %d packages: this test looks in the wrong place", len(seen))
	}
}

func checkTestImport(t *testing.T, may row, pkg, own, path string) {
	t.Helper()
	if own == pkg || within(own, "test/testkit") || within(own, "format") {
		return
	}
	if !slices.Contains(may.imports, own) && !slices.Contains(may.tests, own) {
		t.Errorf("%s: the import table does not list %s for %s or its tests", path, own, pkg)
	}
}

func checkConfined(t *testing.T, pkg, imported, path string) {
	t.Helper()
	for _, c := range confined {
		if !within(imported, c.path) {
			continue
		}
		if !slices.ContainsFunc(strings.Fields(c.only), func(place string) bool { return within(pkg, place) }) {
			t.Errorf("%s: %s must not import %s: %s", path, pkg, imported, c.why)
		}
		return // one error is enough for an import
	}
}

func TestEveryPackageSaysWhatItPromises(t *testing.T) {
	docs := map[string]bool{}
	sources(t, func(pkg, path string) {
		if strings.HasSuffix(path, "_test.go") && pkg != "test/arch" && pkg != "test/e2e" {
			return
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.PackageClauseOnly|parser.ParseComments)
		if err != nil {
			t.Error(err)
			return
		}
		docs[pkg] = docs[pkg] || file.Doc != nil && len(file.Doc.Text()) > 80
	})
	for pkg, ok := range docs {
		if !ok {
			t.Errorf("package %s has no doc that says what it does", pkg)
		}
	}
	if len(docs) < 10 {
		t.Fatalf("only %d packages were seen: this test looks in the wrong place", len(docs))
	}
}
