package guess

import (
	"cmp"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"lighter/format/erofs"
)

var pythonName = regexp.MustCompile(`^python(3\.[0-9]+)?$`)

// python finds what a Python interpreter imports. It reads the sources of the modules.
type python struct {
	*guesser
	tag  string   // tag of compiled modules: cpython-311
	lib  string   // directory of the standard library
	site []string // directories of installed packages
	dirs []string // search path of modules
	seen map[string]bool

	packageDirs map[string][]string // directories of packages that hasSubmodule was asked for
}

// python returns the guesser for an interpreter. It returns nil if the name of the interpreter has
// no version, or its standard library is missing.
func (g *guesser) python(program regular, argv []string) *python {
	version := pythonName.FindStringSubmatch(path.Base(program.path))[1]
	prefixes := []string{path.Dir(path.Dir(program.path)), "/usr", "/usr/local"}
	p := &python{guesser: g, tag: "cpython-" + strings.ReplaceAll(version, ".", ""), seen: map[string]bool{},
		packageDirs: map[string][]string{}}
	for _, prefix := range prefixes {
		lib := path.Join(prefix, "lib/python"+version)
		if _, ok := g.open(path.Join(lib, "os.py")); ok {
			p.lib = lib
			break
		}
	}
	if p.lib == "" || version == "" {
		return nil
	}
	if len(argv) > 0 && strings.Contains(argv[0], "/") { // a link in a virtual environment
		prefixes = append([]string{path.Dir(path.Dir(g.absolute(argv[0])))}, prefixes...)
	}
	for _, prefix := range prefixes {
		for _, dir := range []string{"lib/python" + version + "/site-packages",
			"lib/python" + version + "/dist-packages", "lib/python3/dist-packages"} {
			at, _, ok := g.resolve(path.Join(prefix, dir))
			if ok && !slices.Contains(p.site, at) {
				p.site = append(p.site, at)
			}
		}
	}
	p.dirs = append(p.dirs, strings.FieldsFunc(g.env["PYTHONPATH"], func(r rune) bool { return r == ':' })...)
	p.dirs = append(append(p.dirs, p.lib, path.Join(p.lib, "lib-dynload")), p.site...)
	return p
}

// pythonOf returns the guesser for a start, or nil if it runs no Python interpreter.
func (g *guesser) pythonOf(s Start) *python {
	if !pythonName.MatchString(path.Base(s.program.path)) {
		return nil
	}
	return g.python(s.program, s.argv)
}

// frozen are modules that are built into the interpreter since Python 3.11.
var frozen = []string{"abc", "codecs", "io", "_collections_abc", "_sitebuiltins", "genericpath", "ntpath",
	"posixpath", "os", "site", "stat",
	"importlib._bootstrap", "importlib._bootstrap_external", "importlib.util", "importlib.machinery", "runpy",
	"zipimport"}

// begin adds what every start imports, and what .pth files name.
func (p *python) begin() {
	minor, _ := strconv.Atoi(strings.TrimPrefix(p.tag, "cpython-3"))
	for _, name := range frozen {
		p.seen[name] = minor >= 11
	}
	for _, name := range []string{"encodings", "encodings.aliases", "encodings.utf_8", "codecs", "io", "abc", "site",
		"os", "sitecustomize", "usercustomize"} {
		p.module(name, 0)
	}
	for _, dir := range p.site {
		for _, name := range p.names(dir, 10_000) {
			if r, ok := p.open(path.Join(dir, name)); ok && strings.HasSuffix(name, ".pth") {
				p.take(&r, span{0, maxScript})
				text := string(p.bytes(&r, 0, maxSource))
				p.scan(text, "", 0)
				for _, call := range importCall.FindAllStringSubmatch(text, 100) {
					p.module(call[1], 0)
				}
			}
		}
	}
}

var importCall = regexp.MustCompile(`__import__\(['"]([\w.]+)['"]\)`)

// run adds what Python reads for a command line.
func (p *python) run(argv []string) {
	for i := 1; i < len(argv); i++ {
		rest := argv[i+1:]
		switch arg := argv[i]; {
		case arg == "-c" && len(rest) > 0:
			p.scan(rest[0], "", 0)
			return
		case arg == "-m" && len(rest) > 0:
			p.module("runpy", 0)
			p.module(rest[0], 0)
			p.module(rest[0]+".__main__", 0)
			return
		case arg == "-W" || arg == "-X":
			i++
		case strings.HasPrefix(arg, "-"):
		default:
			if r, ok := p.open(p.absolute(arg)); ok {
				p.take(&r, span{0, maxScript})
				p.dirs = append([]string{path.Dir(r.path)}, p.dirs...)
				clear(p.packageDirs)
				p.scan(string(p.bytes(&r, 0, maxSource)), "", 0)
			}
			return
		}
	}
}

// module adds a module, its parent packages, and what they import.
func (p *python) module(name string, depth int) {
	if !p.isNew(name, depth) {
		return
	}
	p.seen[name] = true
	parent, last := "", name
	dirs := p.dirs
	if i := strings.LastIndexByte(name, '.'); i >= 0 {
		parent, last = name[:i], name[i+1:]
		p.module(parent, depth+1)
		dirs = nil
		for _, dir := range p.dirs {
			dirs = append(dirs, path.Join(dir, strings.ReplaceAll(parent, ".", "/")))
		}
	}
	if !isName(last) {
		return
	}
	for _, dir := range dirs {
		if p.source(path.Join(dir, last), "__init__", name, depth) || p.extension(dir, last) ||
			p.source(dir, last, parent, depth) {
			return
		}
	}
}

// isNew reports whether a module may still be added.
func (p *python) isNew(name string, depth int) bool {
	return !p.seen[name] && depth <= maxNesting && len(p.seen) <= maxModules && len(name) <= 200
}

// source adds a Python source module, and what it imports. It reports whether there is such a
// module.
func (p *python) source(dir, name, pkg string, depth int) bool {
	r, ok := p.open(path.Join(dir, name+".py"))
	if !ok {
		return false
	}
	if compiled, ok := p.open(path.Join(dir, "__pycache__", name+"."+p.tag+".pyc")); ok {
		p.take(&compiled, span{0, maxScript})
	} else {
		p.take(&r, span{0, maxScript})
	}
	p.scanFile(&r, pkg, depth+1)
	return true
}

// extension adds a module that is a shared library. It reports whether there is one.
func (p *python) extension(dir, name string) bool {
	for _, suffix := range []string{"." + p.tag + "-x86_64-linux-gnu.so", "." + p.tag + "-aarch64-linux-gnu.so",
		".abi3.so", ".so"} {
		if r, ok := p.open(path.Join(dir, name+suffix)); ok {
			p.binary(r, maxExtensionCode)
			return true
		}
	}
	return false
}

// scan adds what a source file imports. pkg is the file's package.
func (p *python) scan(source, pkg string, depth int) {
	for _, s := range statements(source) {
		p.imports(s, pkg, depth)
	}
}

// scanFile is scan for a file, which other packages may import, too.
func (p *python) scanFile(r *regular, pkg string, depth int) {
	all, known := p.scanned[r.path]
	if !known {
		all = statements(string(p.bytes(r, 0, maxSource)))
		size := len(r.path)
		for _, s := range all {
			size += len(s.rest) + statementSize
		}
		if p.scannedSize+size <= maxScanned {
			p.scannedSize += size
			p.scanned[r.path] = all
		}
	}
	for _, s := range all {
		p.imports(s, pkg, depth)
	}
}

// imports adds what one import statement imports.
func (p *python) imports(s statement, pkg string, depth int) {
	if !s.isFrom {
		for _, name := range strings.Split(s.rest, ",") {
			name, _, _ = strings.Cut(strings.TrimSpace(name), " ")
			p.module(name, depth)
		}
		return
	}
	from, names, ok := strings.Cut(s.rest, " import")
	if !ok {
		return
	}
	from = strings.TrimSpace(from)
	for dots := 0; strings.HasPrefix(from, "."); dots++ {
		from = from[1:]
		if dots > 0 {
			if i := strings.LastIndexByte(pkg, '.'); i >= 0 {
				pkg = pkg[:i]
			} else {
				pkg = ""
			}
		}
		if !strings.HasPrefix(from, ".") {
			from = strings.Trim(pkg+"."+from, ".")
			break
		}
	}
	p.module(from, depth)
	for _, name := range strings.Split(strings.Trim(strings.TrimSpace(names), "()\\ "), ",") {
		name, _, _ = strings.Cut(strings.TrimSpace(name), " ")
		full := from + "." + name
		if isName(name) && from != "" && p.isNew(full, depth) && p.hasSubmodule(from, name) {
			p.module(full, depth)
		}
	}
}

// hasSubmodule reports whether a package has a module of that name.
func (p *python) hasSubmodule(pkg, name string) bool {
	dirs, known := p.packageDirs[pkg]
	if !known {
		for _, dir := range p.dirs {
			at := path.Join(dir, strings.ReplaceAll(pkg, ".", "/"))
			if _, ok := p.find(at); ok {
				dirs = append(dirs, at)
			}
		}
		if len(p.packageDirs) < maxModules {
			p.packageDirs[pkg] = dirs
		}
	}
	for _, dir := range dirs {
		for _, file := range []string{name + ".py", name + "/__init__.py",
			name + "." + p.tag + "-x86_64-linux-gnu.so"} {
			if _, ok := p.find(path.Join(dir, file)); ok {
				return true
			}
		}
	}
	return false
}

// first returns the file that an import of a package reads first, or an empty one.
func (p *python) first(pkg string) (first regular) {
	for _, dir := range p.site {
		for _, name := range []string{"__pycache__/__init__." + p.tag + ".pyc", "__init__.py"} {
			if r, ok := p.open(path.Join(dir, pkg, name)); ok {
				return r
			}
		}
	}
	return first
}

func isName(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return r != '_' && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z')
	})
}

// packages returns the largest installed packages, which users of this Python are likely to import.
func (p *python) packages() (names []string) {
	sizes := map[string]int64{}
	_, err := p.Metadata.Walk(p.ctx, func(name string, in erofs.Inode) error {
		for _, dir := range p.site {
			rest, below := strings.CutPrefix(name, dir+"/")
			if first, _, deeper := strings.Cut(rest, "/"); below && deeper && in.Device && isName(first) {
				sizes[first] += in.Size
			}
		}
		return nil
	})
	if err != nil {
		return nil
	}
	for name, size := range sizes {
		if size >= minPackage {
			names = append(names, name)
		}
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Or(cmp.Compare(sizes[b], sizes[a]), cmp.Compare(a, b)) })
	return names[:min(len(names), maxPackages)]
}
