package guess

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"lighter/format/chunk"
)

// The imports of a Python program are found in its sources.
func TestGuessOfPython(t *testing.T) {
	const site, lib = "/usr/local/lib/python3.11/dist-packages/", "/usr/lib/python3.11/"
	files := linux()
	for name, text := range map[string]string{
		site + "pkg/__init__.py": `from .core import (
    run,
)
from . import sub, value
__version__ = 1
def f():
    import hidden
`,
		site + "pkg/core.py": `try:
    import json.decoder as d, missing
except ImportError:
    pass
if TYPE_CHECKING:
    import hidden
`,
		site + "pkg/sub/__init__.py": "from ..other import x  # import hidden\nfrom pkg.native import y\n",
		site + "pkg/other.py":        "import pkg, pkg.other; import hidden\n",
		site + "pkg/__main__.py":     "import os\n",
		site + "own.pth":             "import hook; __import__('late').start()\n/hidden\n", site + "late.py": "",
		site + "hook.py": "", site + "hidden.py": "",
		lib + "json/__init__.py": "", lib + "json/decoder.py": "from . import scanner", lib + "json/scanner.py": "",
	} {
		files[name] = long(text)
	}
	files[site+"pkg/native.cpython-311-x86_64-linux-gnu.so"] = elf("", "", "libxy.so.1")
	files[site+"pkg/native.py"] = long("import hidden")
	want := []string{site + "hook.py", site + "late.py", site + "pkg/__init__.py", site + "pkg/core.py",
		lib + "json/__init__.py", lib + "json/decoder.py", lib + "json/scanner.py",
		site + "pkg/sub/__init__.py", site + "pkg/other.py", site +
			"pkg/native.cpython-311-x86_64-linux-gnu.so", "/usr/lib/x86_64-linux-gnu/libxy.so.1"}
	for _, argv := range [][]string{{"python3", "-c", "import pkg"}, {"python3", "-u", "-W", "x", "-m", "pkg"},
		{"python3", "/app/main.py", "pkg"}} {
		files["/app/main.py"] = long("#!/usr/bin/env python3\nimport beside\nfrom pkg import value\n")
		files["/app/beside.py"] = long("")
		_, got := files.guess(t, Config{Cmd: argv})
		for _, name := range want {
			if !slices.Contains(got, name) {
				t.Errorf("%q: guessed %q, want %s in it", argv, got, name)
			}
		}
		if slices.Contains(got, site+"hidden.py") || slices.Contains(got,
			"/app/beside.py") != (argv[1] == "/app/main.py") || slices.Contains(got, lib+"os.py") {
			t.Errorf("%q: guessed %q, want no hidden.py and no os.py, and beside.py only for main.py", argv, got)
		}
	}
	// The largest packages have guesses of their own.
	files[site+"pkg/data"] = strings.Repeat("x", chunk.MaxLength)
	files[site+"pkg/more"] = strings.Repeat("y", chunk.MaxLength)
	recordings, _ := files.guess(t, Config{Cmd: []string{"sh"}})
	if last := recordings[len(recordings)-1].Entries; last[0].Path != site+"pkg/__init__.py" {
		t.Errorf("the last guess is of %v, want package pkg", last)
	}
}

// Only imports at module level count, and a statement ends with its line.
func TestStatements(t *testing.T) {
	got := statements("import os, re  # both\r\nfrom . import (a,\n    b)\nimportant = from_ = 1\n" +
		"if x:\n\timport y; z()\n" +
		"def f():\n    import no\n# def\n    import no\n)\n    from no import no\nelse:\n  from  a.b  import c\n" +
		"if TYPE_CHECKING:\n  import no\n\n  import no\nimport\nimport last")
	want := []statement{{false, "os, re"}, {true, ". import (a,"}, {false, "y"}, {true, "a.b  import c"},
		{false, "last"}}
	if !slices.Equal(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// What a source file imports is kept for the next package that imports it, in bounded memory.
func TestScannedFiles(t *testing.T) {
	c := contents{}
	for i := range maxScanned/maxSource + 10 {
		c[fmt.Sprintf("/%d.py", i)] = fmt.Sprintf("import %d%s\n", i, strings.Repeat("a", maxSource-100))
	}
	chunks := map[chunk.ID]string{}
	g := newGuesser(newFiles(t.Context(), open(t, c.dir("/", chunks), chunks)), &Config{})
	p := &python{guesser: g, seen: map[string]bool{}}
	for range 2 {
		for name := range c {
			r, _ := g.open(name)
			p.scanFile(&r, "", 0)
		}
	}
	if g.scannedSize > maxScanned || len(g.scanned) < maxScanned/maxSource-1 || g.reads > len(c)+10 {
		t.Errorf("%d files with %d bytes are kept, after %d reads", len(g.scanned), g.scannedSize, g.reads)
	}
}
