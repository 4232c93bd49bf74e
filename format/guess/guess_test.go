package guess

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"lighter/format/chunk"
	"lighter/format/erofs"
	"lighter/format/index"
	"lighter/format/trace"
	"lighter/format/tree"
)

// contents has the files of an image, by path: a file's bytes, or "-> " and the target of a link.
type contents map[string]string

// guess returns the recordings guessed for a config, and the paths of the first recording in order.
func (c contents) guess(t testing.TB, config Config) (recordings []trace.Recording, paths []string) {
	t.Helper()
	chunks := map[chunk.ID]string{}
	image := open(t, c.dir("/", chunks), chunks)
	image.Config = config
	recordings, err := image.Recordings(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range recordings {
		for _, e := range r.Entries {
			if e.Length <= 0 || e.Offset+e.Length > int64(len(c[e.Path])) {
				t.Errorf("the guess has %d bytes at %d of %s, want a part of its %d bytes", e.Length, e.Offset, e.Path,
					len(c[e.Path]))
			}
			if i == 0 && !slices.Contains(paths, e.Path) {
				paths = append(paths, e.Path)
			}
		}
	}
	return recordings, paths
}

// open returns the image with a root directory. chunks has the contents of its chunks.
func open(t testing.TB, root *tree.Node, chunks map[chunk.ID]string) *Image {
	t.Helper()
	var metadata, whole, extents bytes.Buffer
	made, err := index.Make(&tree.Tree{Root: root}, &metadata)
	if err != nil {
		t.Fatal(err)
	}
	if err := made.Write(&whole, bytes.NewReader(metadata.Bytes())); err != nil {
		t.Fatal(err)
	}
	if _, err := index.Receive(&whole, made.ID(), &extents, &bytes.Buffer{}); err != nil {
		t.Fatal(err)
	}
	m, err := index.OpenMap(bytes.NewReader(extents.Bytes()), made.ID(), index.NewPages(64))
	if err != nil {
		t.Fatal(err)
	}
	image, err := erofs.Open(bytes.NewReader(metadata.Bytes()), int64(metadata.Len()))
	if err != nil {
		t.Fatal(err)
	}
	read := func(_ context.Context, _ int64, ref chunk.Ref) ([]byte, error) { return []byte(chunks[ref.ID]), nil }
	return &Image{Metadata: image, Extents: m, Chunk: read}
}

// dir makes the directory of a path. Files are executable. A file is inline or has one chunk.
func (c contents) dir(at string, chunks map[chunk.ID]string) *tree.Node {
	var names []string
	for name := range c {
		if rest, below := strings.CutPrefix(name, at); below {
			first, _, _ := strings.Cut(rest, "/")
			names = append(names, first)
		}
	}
	slices.Sort(names)
	var children []tree.Dirent
	for _, name := range slices.Compact(names) {
		text, isFile := c[at+name]
		n := &tree.Node{Mode: tree.ModeRegular | 0o755, Nlink: 1, Size: int64(len(text))}
		target, isLink := strings.CutPrefix(text, "-> ")
		switch {
		case !isFile:
			n = c.dir(at+name+"/", chunks)
		case isLink:
			n = &tree.Node{Mode: tree.ModeSymlink | 0o777, Nlink: 1, Size: int64(len(target)), Link: target}
		case len(text) <= tree.InlineLimit:
			n.Content.Inline = []byte(text)
		default:
			id := chunk.Sum([]byte(text))
			chunks[id] = text
			n.Content.Extents = []tree.Extent{{ID: id, Length: int64(len(text))}}
		}
		children = append(children, tree.Dirent{Name: name, Node: n})
	}
	return tree.NewDir(tree.Node{Mode: 0o755}, children)
}

// elf makes a program or library: 2,024 bytes of headers and data, then 6,976 bytes of code.
func elf(interp, runpath string, needed ...string) string {
	le := binary.LittleEndian
	const data, strings = 0x400, 0x600
	b := make([]byte, 9000)
	copy(b, "\x7fELF\x02\x01\x01")
	le.PutUint64(b[24:], 0x10000+2000) // entry
	le.PutUint64(b[32:], 64)           // program headers
	le.PutUint16(b[54:], 56)
	programs := 0
	program := func(kind, flags uint32, from, to, address uint64) {
		p := b[64+56*programs:]
		le.PutUint32(p, kind)
		le.PutUint32(p[4:], flags)
		le.PutUint64(p[8:], from)
		le.PutUint64(p[16:], address)
		le.PutUint64(p[32:], to-from)
		programs++
	}
	program(ptLoad, 4, 0, data+1000, 0)
	program(ptLoad, 5, data+1000, 9000, 0x10000)
	names := strings
	name := func(s string) uint64 {
		at := names
		names += copy(b[names:], s) + 1
		return uint64(at - strings)
	}
	at := data
	entry := func(tag, value uint64) {
		le.PutUint64(b[at:], tag)
		le.PutUint64(b[at+8:], value)
		at += 16
	}
	entry(dtStrtab, strings)
	for _, n := range needed {
		entry(dtNeeded, name(n))
	}
	if runpath != "" {
		entry(dtRunpath, name(runpath))
	}
	program(ptDynamic, 4, data, uint64(at)+16, data)
	if interp != "" {
		from := uint64(names)
		name(interp)
		program(ptInterp, 4, from, uint64(names), from)
	}
	le.PutUint16(b[56:], uint16(programs))
	return string(b)
}

func long(s string) string { return s + strings.Repeat("\n# and so on", 60) }

const loaderPath = "/lib64/ld-linux-x86-64.so.2"

// linux is an image with a shell, a server and a Python.
func linux() contents {
	return contents{
		"/lib": "-> usr/lib", "/lib64": "-> usr/lib64", "/bin": "-> usr/bin",
		"/usr/lib64/ld-linux-x86-64.so.2":                "-> ../lib/x86_64-linux-gnu/ld-linux-x86-64.so.2",
		"/usr/lib/x86_64-linux-gnu/libc.so.6":            elf("", "", "ld-linux-x86-64.so.2"),
		"/usr/lib/x86_64-linux-gnu/libm.so.6":            "-> libm-2.so",
		"/usr/lib/x86_64-linux-gnu/libm-2.so":            elf("", "", "libc.so.6"),
		"/usr/lib/x86_64-linux-gnu/libxy.so.1":           elf("", "", "libxy.so.1", "libc.so.6"),
		"/usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2": elf("", ""),
		"/usr/bin/sh":               elf(loaderPath, "", "libc.so.6"),
		"/usr/bin/env":              elf(loaderPath, "", "libc.so.6"),
		"/usr/bin/python3":          "-> python3.11",
		"/usr/bin/python3.11":       elf(loaderPath, "", "libm.so.6", "libc.so.6"),
		"/usr/lib/python3.11/os.py": long("# os"),
		"/usr/lib/python3.11/encodings/__pycache__/utf_8.cpython-311.pyc": long("utf_8"),
		"/usr/lib/python3.11/encodings/utf_8.py":                          "import codecs\n",
		"/usr/lib/python3.11/encodings/aliases.py":                        long("aliases"),
		"/etc/ld.so.cache":           long("cache"),
		"/etc/ld.so.conf":            "include /etc/ld.so.conf.d/*.conf\n",
		"/etc/ld.so.conf.d/own.conf": "# own\n/opt/own/lib\n",
		"/opt/own/lib/libown.so":     elf("", "", "libxy.so.1"),
		"/opt/server/bin/server": elf(loaderPath, "$ORIGIN/../lib", "libprivate.so", "libown.so", "libgone.so",
			"libc.so.6"),
		"/opt/server/lib/libprivate.so": elf("", "", "libm.so.6"),
		"/opt/server/server.conf":       long("port = 1"),
		"/entry.sh": long(`#!/bin/sh -e
set -x
if [ "$1" = server ]; then exec gosu user "$@"; fi
PORT=1 exec "$@"
`),
		"/usr/local/bin/gosu": elf("", ""),
		"/app/main.py":        long("#!/usr/bin/env python3\nimport os\n"),
	}
}

// A guess has the files that a program reads at its start, in the order of its reads.
func TestGuess(t *testing.T) {
	const lib = "/usr/lib/x86_64-linux-gnu/"
	path := []string{"PATH=/usr/bin:/usr/local/bin:/opt/server/bin"}
	for name, c := range map[string]struct {
		config Config
		want   []string
	}{
		"a program": {Config{Cmd: []string{"sh"}}, []string{"/usr/bin/sh", lib + "ld-linux-x86-64.so.2",
			"/etc/ld.so.cache", lib + "libc.so.6"}},
		"libraries": {Config{Cmd: []string{"server", "--config", "server.conf"}, Env: path,
			WorkingDir: "/opt/server"}, []string{"/opt/server/bin/server",
			lib + "ld-linux-x86-64.so.2", "/etc/ld.so.cache", "/opt/server/lib/libprivate.so",
			"/opt/own/lib/libown.so", lib + "libc.so.6", lib + "libm-2.so", lib + "libxy.so.1",
			"/opt/server/server.conf"}},
		"LD_LIBRARY_PATH": {Config{Cmd: []string{"/opt/own/lib/libown.so"},
			Env: []string{"LD_LIBRARY_PATH=:relative:/opt/server/lib"}}, []string{"/opt/own/lib/libown.so",
			lib + "libxy.so.1", "/etc/ld.so.cache", lib + "libc.so.6", lib + "ld-linux-x86-64.so.2"}},
		"a script": {Config{Entrypoint: []string{"/entry.sh"}, Cmd: []string{"server"}, Env: path},
			[]string{"/entry.sh", "/usr/bin/sh",
				lib + "ld-linux-x86-64.so.2", "/etc/ld.so.cache", lib +
					"libc.so.6", "/usr/local/bin/gosu", "/opt/server/bin/server", "/opt/server/lib/libprivate.so"}},
		"a command line": {Config{Entrypoint: []string{"/bin/sh", "-c"}, Cmd: []string{"cd /app && exec ./main.py"},
			Env: path, WorkingDir: "/app"}, []string{
			"/usr/bin/sh", "/app/main.py", "/usr/bin/python3.11"}},
		"Python": {Config{Cmd: []string{"/app/main.py"}, Env: path}, []string{"/app/main.py", "/usr/bin/python3.11",
			lib + "ld-linux-x86-64.so.2", "/etc/ld.so.cache", lib + "libm-2.so",
			lib + "libc.so.6", "/usr/lib/python3.11/encodings/aliases.py",
			"/usr/lib/python3.11/encodings/__pycache__/utf_8.cpython-311.pyc"}},
	} {
		_, got := linux().guess(t, c.config)
		for i, p := range c.want { // in this order
			if at := slices.Index(got, p); at < 0 || i > 0 && at < slices.Index(got, c.want[i-1]) {
				t.Errorf("%s: guessed %q, want %s in it, after the wanted files before", name, got, p)
			}
		}
	}
}

// The guess of an odd or hostile image is small, and no error.
func TestGuessOfOddImages(t *testing.T) {
	loop := contents{"/a": "-> b", "/b": "-> a", "/c": "-> c/c/c/c", "/d": "-> " + strings.Repeat("d/", 2000)}
	shebangs := contents{"/s": long("#!/s"), "/e": long("#!/usr/bin/env env env"), "/n": long("#!"),
		"/m": long("#!/missing x")}
	needs := contents{"/lib/liba.so": elf("/lib/liba.so", "/lib:$ORIGIN", "libb.so", "liba.so"),
		"/lib/libb.so": elf("/lib/liba.so", "", "liba.so", "libb.so", "/lib/libb.so")}
	shells := contents{"/bin/sh": elf("", ""), "/x": long("#!/bin/sh\n/x; /y; sh -c /x; sh /y /x"),
		"/y": long("#!/bin/sh\n/x /y && /y")}
	confs := contents{"/etc/ld.so.conf": "include /etc/ld.so.conf\ninclude *\ninclude [\n/lib\nrelative\n",
		"/bin/sh": elf("", "", "none.so")}
	for _, c := range []struct {
		files contents
		argv  []string
		most  int // the largest allowed number of entries of the first guess
	}{
		{contents{}, nil, 0}, {contents{}, []string{""}, 0}, {contents{}, []string{"missing"},
			0}, {contents{"/x/y": "z"}, []string{"/x"}, 0},
		{loop, []string{"/a"}, 0}, {loop, []string{"/c"}, 0}, {loop, []string{"/d"}, 0}, {loop, []string{"a"}, 0},
		{shebangs, []string{"/s"}, 20}, {shebangs, []string{"/e"}, 20}, {shebangs, []string{"/n"}, 4}, {shebangs,
			[]string{"/m"}, 4},
		{needs, []string{"/lib/liba.so"}, 20}, {shells, []string{"/x"}, 200}, {confs, []string{"sh"}, 10},
		{linux(), []string{"../../usr/bin/../bin/sh"}, 20}, {linux(), []string{"python3", "-c",
			strings.Repeat("import "+strings.Repeat("a.", 100)+"b\nfrom ....... import c\n", 1000)}, 20},
	} {
		recordings, paths := c.files.guess(t, Config{Cmd: c.argv, WorkingDir: "."})
		if len(recordings) > 0 && len(recordings[0].Entries) > c.most {
			t.Errorf("%q: guessed %d parts of %q, want %d at most", c.argv, len(recordings[0].Entries), paths, c.most)
		}
	}
}

// Starts are found without contents: the config's program first. A package is one of the
// interpreter's. All recordings are those of the starts.
func TestStarts(t *testing.T) {
	c := linux()
	c["/usr/lib/python3/dist-packages/large/__init__.py"] = long("import large.more")
	c["/usr/lib/python3/dist-packages/other/__init__.py"] = long("import large.most")
	for _, name := range []string{"more", "most", "rest"} {
		c["/usr/lib/python3/dist-packages/large/"+name+".py"] = strings.Repeat("# "+name+"\n", minPackage/20)
		c["/usr/lib/python3/dist-packages/other/"+name+".py"] = strings.Repeat("#"+name+"\n", minPackage/18)
	}
	chunks := map[chunk.ID]string{}
	image := open(t, c.dir("/", chunks), chunks)
	contents := image.Chunk
	for _, test := range []struct {
		cmd  []string
		want string
	}{
		{[]string{"/app/main.py"}, "/app/main.py* /usr/bin/sh /usr/bin/python3.11 large other"},
		{[]string{"python3", "-c", ""}, "/usr/bin/python3.11* /usr/bin/sh large other"},
		{[]string{"nothing"}, "/usr/bin/sh /usr/bin/python3.11 large other"},
		{[]string{"sh"}, "/usr/bin/sh /usr/bin/python3.11 large other"},
		{[]string{"sh", "-c", "x"}, "/usr/bin/sh* /usr/bin/python3.11 large other"},
		{nil, "/usr/bin/sh /usr/bin/python3.11 large other"},
	} {
		image.Config, image.Chunk = Config{Cmd: test.cmd}, nil
		starts, err := image.Starts(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range slices.Clone(starts) {
			packages, err := image.Packages(t.Context(), s)
			if err != nil {
				t.Fatal(err)
			}
			starts = append(starts, packages...)
		}
		image.Chunk = contents
		var names []string
		var recordings []trace.Recording
		for _, s := range starts {
			name := s.program.path
			if s.pkg != "" {
				name = s.pkg
			}
			if s.Named {
				name += "*"
			}
			names = append(names, name)
			r, err := image.Recording(t.Context(), s)
			if err != nil {
				t.Fatal(err)
			}
			recordings = append(recordings, r)
			first := s.program.path
			if s.pkg != "" {
				first = "/usr/lib/python3/dist-packages/" + s.pkg + "/__init__.py"
			}
			if in, err := image.Metadata.Finder().Find(first); err != nil || s.Trigger != int64(in.Address) ||
				s.Length != in.Size {
				t.Errorf("%s: its trigger is %d, of %d bytes; want %d, %d (%v)", name, s.Trigger, s.Length, in.Address,
					in.Size, err)
			}
		}
		if got := strings.Join(names, " "); got != test.want {
			t.Errorf("%q: starts %s, want %s", test.cmd, got, test.want)
		}
		if got, err := image.Recordings(t.Context()); err != nil || !reflect.DeepEqual(got, recordings) {
			t.Errorf("%q: guessed %v, error %v, want %v", test.cmd, got, err, recordings)
		}
	}
}

// A container may run another program than its image's config says, with its own environment, also
// a shell or one that is no known runtime.
func TestProgramOfAContainer(t *testing.T) {
	chunks := map[chunk.ID]string{}
	files := linux()
	files["/srv/tool"], files["/srv/input"] = long("#!/bin/sh\n"), long("text")
	image := open(t, files.dir("/", chunks), chunks)
	image.Config = Config{Cmd: []string{"python3"}, Env: []string{"PATH=/nowhere"}, WorkingDir: "/app"}
	for _, test := range []struct {
		run  Config
		want string
		part string // of the recording
	}{
		{Config{Cmd: []string{"tool", "input"}, Env: []string{"PATH=/srv"}, WorkingDir: "/srv"}, "/srv/tool",
			"/srv/input"},
		{Config{Entrypoint: []string{"sh"}}, "/usr/bin/sh", "/usr/bin/sh"},
		{Config{Cmd: []string{"tool"}}, "", ""},
		{Config{}, "", ""},
	} {
		s, found := image.Program(t.Context(), test.run)
		if s.program.path != test.want || found != (test.want != "") || found && !s.Named {
			t.Errorf("%v runs %+v, %t, want %q", test.run, s, found, test.want)
		}
		if !found {
			continue
		}
		r, err := image.Recording(t.Context(), s)
		if err != nil || !slices.ContainsFunc(r.Entries, func(e trace.Entry) bool { return e.Path == test.part }) {
			t.Errorf("%v reads %v, error %v, want %s among it", test.run, r.Entries, err, test.part)
		}
	}
}

// Two starts are the same if they run the same: containerd gives a container a directory, and joins
// its arguments.
func TestSameStarts(t *testing.T) {
	image := open(t, linux().dir("/", map[chunk.ID]string{}), nil)
	start := func(c Config) Start {
		t.Helper()
		s, found := image.Program(t.Context(), c)
		if !found {
			t.Fatalf("%+v runs nothing", c)
		}
		return s
	}
	a := start(Config{Entrypoint: []string{"sh"}, Cmd: []string{"b"}})
	for want, others := range map[bool][]Config{
		true: {{Cmd: []string{"sh", "b"}, WorkingDir: "/"}, {Cmd: []string{"sh", "b"}, Env: []string{"A=b"}}},
		false: {{Cmd: []string{"sh"}}, {Cmd: []string{"sh", "b"}, WorkingDir: "/srv"},
			{Cmd: []string{"/usr/bin/python3.11", "b"}}},
	} {
		for _, other := range others {
			if b := start(other); a.Same(b) != want || b.Same(a) != want {
				t.Errorf("%+v is the same: %t, want %t", other, !want, want)
			}
		}
	}
	got := ConfigOfProgram([]string{"a"}, []string{"SECRET=x", "PATH=/bin", "PATHS=/x", "PYTHONPATH=/lib"}, "/data")
	want := Config{Cmd: []string{"a"}, Env: []string{"PATH=/bin", "PYTHONPATH=/lib"}, WorkingDir: "/data"}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// Unreadable files are left out. Only the caller's context ends a guess.
func TestGuessWithoutContents(t *testing.T) {
	image := open(t, linux().dir("/", map[chunk.ID]string{}), nil)
	image.Config = Config{Cmd: []string{"sh"}}
	image.Chunk = func(context.Context, int64, chunk.Ref) ([]byte, error) { return nil, errors.New("broken") }
	got, err := image.Recordings(t.Context())
	if err != nil || len(got) == 0 {
		t.Errorf("guessed %v, error %v, want a guess and no error", got, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := image.Recordings(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("with a cancelled context: error %v, want Canceled", err)
	}
}

// A guess is bounded, whatever a program, a library or a script contains.
func FuzzGuess(f *testing.F) {
	f.Add([]byte(elf(loaderPath, "$ORIGIN", "libc.so.6", "libx.so")))
	f.Add([]byte(long("#!/bin/sh\nexec /x \"$@\"")))
	f.Add([]byte(long("#!/usr/bin/env python3\nimport x, os.path\nfrom . import y\n")))
	image := linux()
	image["/usr/bin/sh"] = elf("/x", "", "libx.so")
	f.Fuzz(func(t *testing.T, b []byte) {
		files := maps.Clone(image)
		files["/x"], files["/usr/lib/x86_64-linux-gnu/libx.so"] = string(b), string(b)
		if strings.HasPrefix(string(b), "-> ") || len(b) > chunk.MaxLength {
			return
		}
		recordings, _ := files.guess(t, Config{Entrypoint: []string{"/x"}, Cmd: []string{"/x", "-c", string(b)}})
		for _, r := range recordings {
			if len(r.Entries) > 10_000 {
				t.Errorf("guessed %d parts, want 10,000 at most", len(r.Entries))
			}
		}
	})
}

// A guess keeps few bytes in memory, however large the chunks are.
func TestKeptChunks(t *testing.T) {
	const size = 5 << 20
	reads := 0
	f := newFiles(t.Context(), &Image{Metadata: open(t, linux().dir("/", map[chunk.ID]string{}), nil).Metadata,
		Chunk: func(context.Context, int64, chunk.Ref) ([]byte, error) { reads++; return make([]byte, size), nil }})
	for i := range 20 {
		f.chunk(int64(i), chunk.Ref{ID: chunk.Sum([]byte{byte(i)}), Length: size})
		f.chunk(int64(i), chunk.Ref{ID: chunk.Sum([]byte{byte(i)}), Length: size})
	}
	if f.kept > maxKept || f.kept != size*len(f.plain) || len(f.plain) != len(f.oldest) || reads != 20 {
		t.Errorf("%d bytes are kept of %d chunks, in %d reads", f.kept, len(f.plain), reads)
	}
}
