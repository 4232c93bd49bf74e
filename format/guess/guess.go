package guess

import (
	"context"
	"path"
	"slices"
	"strings"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/format/chunk"
	"lighter/format/erofs"
	"lighter/format/index"
	"lighter/format/trace"
)

// Config is the part of an image's config that says how it starts.
type Config struct {
	Entrypoint, Cmd []string
	Env             []string // NAME=value
	WorkingDir      string
}

// dir returns the absolute path of the working directory.
func (c *Config) dir() string { return path.Join("/", c.WorkingDir) }

// ConfigOf returns this part of an image's config.
func ConfigOf(c v1.ImageConfig) Config {
	return Config{Entrypoint: c.Entrypoint, Cmd: c.Cmd, Env: c.Env, WorkingDir: c.WorkingDir}
}

// ConfigOfProgram returns the config of an image that would run a program: argv, in a directory,
// with an environment of NAME=value. It keeps only the variables that a guess needs: others may be
// secrets.
func ConfigOfProgram(argv, env []string, dir string) Config {
	c := Config{Cmd: argv, WorkingDir: dir}
	for _, e := range env {
		if name, _, _ := strings.Cut(e, "="); slices.Contains(variables, name) {
			c.Env = append(c.Env, e)
		}
	}
	return c
}

// variables are the variables of the environment that a guess needs.
var variables = []string{"PATH", "LD_LIBRARY_PATH", "PYTHONPATH"}

// Image is an image's tree, contents and config.
type Image struct {
	Metadata *erofs.Image
	Extents  *index.Map
	// Chunk returns the plain bytes of the chunk of an extent, by the extent's number in Extents.
	// The caller may keep them.
	Chunk  func(ctx context.Context, extent int64, ref chunk.Ref) ([]byte, error)
	Config Config
}

// Start is a program that starts of an image may run, or a Python package that they may import.
type Start struct {
	// Named says that the image's config names the program. A shell without arguments does not
	// count: it is the default of base images, and users run something else.
	Named bool
	// Trigger is the place of a file that the start reads first: the device's offset of its first
	// byte. It is -1 if the file is not on the device. The file has Length bytes.
	Trigger, Length int64

	program regular
	argv    []string
	pkg     string // the package that program, a Python interpreter, imports; empty: the program alone
	config  *Config
}

// Starts returns the programs that starts of the image are likely to run: first the one of the
// config, unless Starts cannot find it, and then programs that users often run instead. It
// reads no chunks. Its only error is the context's.
func (i *Image) Starts(ctx context.Context) ([]Start, error) {
	return newGuesser(newFiles(ctx, i), &i.Config).starts(), ctx.Err()
}

// Program returns the program that a container runs which has another config than the image, also a
// shell without arguments. It reads no chunks. It returns false if it cannot find the program.
func (i *Image) Program(ctx context.Context, of Config) (s Start, found bool) {
	g := newGuesser(newFiles(ctx, i), &of)
	program, found := g.command(g.argv)
	return g.start(program, g.argv, true), found
}

// Same reports whether two starts run the same program, with the same arguments and in the same
// directory, or import the same package. The environment does not count.
func (s Start) Same(other Start) bool {
	return s.program.path == other.program.path && s.pkg == other.pkg && slices.Equal(s.argv, other.argv) &&
		s.config.dir() == other.config.dir()
}

// Packages returns the largest packages of a program that is a Python interpreter, and nothing for
// other programs. Its only error is the context's.
func (i *Image) Packages(ctx context.Context, of Start) ([]Start, error) {
	return newGuesser(newFiles(ctx, i), of.config).packagesOf(of), ctx.Err()
}

// Recording returns a recording, with 0 Starts, of what a start is likely to read.
//
// The recording of a program has the program, its dynamic linker (ld.so), its libraries, the files
// that such programs read when they start, and the scripts and programs that the arguments name.
// The recording of a Python package has the modules that Python imports when it starts, the
// package, and the modules that the package imports. Recording reads at most 8,192 chunks. It
// leaves out what it cannot find, read or understand, and what exceeds the bounds of a guess. Its
// only error is the context's.
func (i *Image) Recording(ctx context.Context, s Start) (trace.Recording, error) {
	return newGuesser(newFiles(ctx, i), s.config).recording(s), ctx.Err()
}

// Recordings returns the recordings of all Starts, and of the Packages of the first Python among
// them, without the empty ones, and 16 at most. All of them together read as much as Recording.
func (i *Image) Recordings(ctx context.Context) ([]trace.Recording, error) {
	g := newGuesser(newFiles(ctx, i), &i.Config)
	var all []trace.Recording
	add := func(starts []Start) {
		for _, s := range starts {
			if r := g.recording(s); len(r.Entries) > 0 && len(all) < maxRecordings {
				all = append(all, r)
			}
		}
	}
	starts := g.starts()
	add(starts)
	for _, s := range starts {
		if packages := g.packagesOf(s); packages != nil {
			add(packages)
			break
		}
	}
	return all, ctx.Err()
}

// guesser guesses what programs read, one program after the other.
type guesser struct {
	*linker
	config *Config
	argv   []string // the config's command line
	path   []string // directories of PATH
	dir    string   // the working directory

	scanned     map[string][]statement // of Python source files, by path
	scannedSize int                    // about the bytes that scanned takes

	// The following are about the current program.
	entries []trace.Entry
	left    int64 // bytes that may still be added
	depth   int   // nesting of scripts that run scripts
}

func newGuesser(f *files, config *Config) *guesser {
	env := map[string]string{"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	for _, e := range config.Env {
		if name, value, ok := strings.Cut(e, "="); ok {
			env[name] = value
		}
	}
	path := strings.Split(env["PATH"], ":")
	return &guesser{linker: newLinker(f, env), config: config, argv: slices.Concat(config.Entrypoint, config.Cmd),
		path: path[:min(len(path), maxSearchDirs)], dir: config.dir(), scanned: map[string][]statement{}}
}

// starts returns what Image.Starts returns.
func (g *guesser) starts() (all []Start) {
	try := func(argv []string, inConfig bool) {
		program, ok := g.command(argv)
		isKnown := func(s Start) bool { return s.program.path == program.path }
		if ok && len(all) < maxRecordings && !slices.ContainsFunc(all, isKnown) {
			named := inConfig && !(len(argv) == 1 && isShell(path.Base(program.path)))
			all = append(all, g.start(program, argv, named))
		}
	}
	try(g.argv, true)
	for _, name := range runtimes {
		for _, found := range g.glob(name) {
			try([]string{found}, false)
		}
	}
	return all
}

func (g *guesser) start(program regular, argv []string, named bool) Start {
	return Start{Named: named, Trigger: program.address(), Length: program.in.Size, program: program, argv: argv,
		config: g.config}
}

// packagesOf returns what Image.Packages returns.
func (g *guesser) packagesOf(s Start) (all []Start) {
	p := g.pythonOf(s)
	if p == nil {
		return nil
	}
	for _, name := range p.packages() {
		first := p.first(name)
		of := g.start(s.program, s.argv, false)
		of.Trigger, of.Length, of.pkg = first.address(), first.in.Size, name
		all = append(all, of)
	}
	return all
}

// recording returns what Image.Recording returns.
func (g *guesser) recording(s Start) trace.Recording {
	g.entries, g.left, g.depth = nil, maxProgramBytes, 0
	if s.pkg == "" {
		g.run(s.program, s.argv)
	} else if p := g.pythonOf(s); p != nil {
		p.begin()
		g.entries, g.left = nil, maxProgramBytes // that is in the recording of the program
		p.module(s.pkg, 0)
	}
	return trace.Recording{Entries: g.entries}
}

// command finds the program that a command line runs.
func (g *guesser) command(argv []string) (regular, bool) {
	if len(argv) == 0 || argv[0] == "" {
		return regular{}, false
	}
	if strings.Contains(argv[0], "/") {
		return g.program(g.absolute(argv[0]))
	}
	for _, dir := range g.path {
		if r, ok := g.program(path.Join(g.dir, dir, argv[0])); ok && !path.IsAbs(dir) {
			return r, true
		}
		if r, ok := g.program(path.Join(dir, argv[0])); ok && path.IsAbs(dir) {
			return r, true
		}
	}
	return regular{}, false
}

// glob returns the files that a pattern matches, at most 16. A * stands for one whole component of
// the path; glob tries the first 16 names of the directory. A pattern without * is returned as it
// is, whether the file exists or not.
func (g *guesser) glob(pattern string) []string {
	before, after, ok := strings.Cut(pattern, "*")
	if !ok {
		return []string{pattern}
	}
	var out []string
	for _, name := range g.names(before, 16) {
		for _, found := range g.glob(before + name + after) {
			if _, there := g.open(found); there && len(out) < 16 {
				out = append(out, found)
			}
		}
	}
	return out
}

func (g *guesser) absolute(name string) string {
	if path.IsAbs(name) {
		return name
	}
	return path.Join(g.dir, name)
}

// take adds a part of a file to the recording.
func (g *guesser) take(r *regular, part span) {
	part.to = min(part.to, r.in.Size, part.from+g.left)
	if !r.in.Device || part.from >= part.to {
		return
	}
	g.left -= part.to - part.from
	g.entries = append(g.entries, trace.Entry{Path: r.path, Offset: part.from, Length: part.to - part.from})
}

// takeFile adds the first maxScript bytes of a file, if it exists.
func (g *guesser) takeFile(name string) {
	if r, ok := g.open(name); ok {
		g.take(&r, span{0, maxScript})
	}
}

// run adds what a program reads when it runs with these arguments; argv[0] is its name.
func (g *guesser) run(program regular, argv []string) {
	for range maxShebangs {
		interpreter, more, ok := g.shebang(&program)
		if !ok {
			break
		}
		g.take(&program, span{0, maxScript})
		argv = append(append(more, program.path), argv[1:]...)
		program = interpreter
	}
	g.binary(program, maxCode)
	g.arguments(program, argv)
}

// shebang returns the interpreter that a script's first line names, and the beginning of its
// command line.
func (g *guesser) shebang(r *regular) (interpreter regular, argv []string, ok bool) {
	head := string(g.bytes(r, 0, 256))
	line, isScript := strings.CutPrefix(head, "#!")
	if !isScript {
		return regular{}, nil, false
	}
	line, _, _ = strings.Cut(line, "\n")
	argv = strings.Fields(line)
	if len(argv) > 1 && path.Base(argv[0]) == "env" {
		argv = argv[1:]
		for len(argv) > 0 && (strings.HasPrefix(argv[0], "-") || strings.Contains(argv[0], "=")) {
			argv = argv[1:]
		}
	}
	interpreter, ok = g.command(argv)
	return interpreter, argv, ok
}

// binary adds a program or library, and the libraries that it needs: first the headers, data,
// relocations and read-only segments of all of them, then the first limit bytes of each of their
// code segments.
func (g *guesser) binary(program regular, limit int64) {
	all := g.load(program)
	for i := range all {
		o := &all[i]
		g.take(&o.regular, span{0, 4096})
		if o.elf == nil {
			g.take(&o.regular, span{0, maxScript})
			continue
		}
		for _, l := range o.elf.loads {
			switch {
			case l.writable:
				g.take(&o.regular, span{l.from, min(l.to, l.from+maxData)})
			case !l.executable:
				g.take(&o.regular, span{l.from, min(l.to, l.from+maxReadOnly)})
			}
		}
		g.take(&o.regular, span{o.elf.relocations.from, min(o.elf.relocations.to, o.elf.relocations.from+maxData)})
		if i == 1 { // usually ld.so, which opens its cache before any library
			g.takeFile("/etc/ld.so.cache")
		}
	}
	for i := range all {
		o := &all[i]
		if o.elf == nil {
			continue
		}
		for _, l := range o.elf.loads {
			if l.executable && !l.writable {
				g.take(&o.regular, span{l.from, min(l.to, l.from+limit)})
			}
		}
	}
}
