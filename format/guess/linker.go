package guess

import (
	"path"
	"strings"
)

// systemDirs are the directories in which ld.so looks for libraries by default.
var systemDirs = []string{
	"/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib/aarch64-linux-gnu", "/usr/lib/aarch64-linux-gnu",
	"/lib64", "/usr/lib64", "/lib", "/usr/lib", "/usr/local/lib",
}

// object is a program or library.
type object struct {
	regular
	elf *binaryFile // nil: not an ELF file
}

// linker finds the libraries that programs load, as the dynamic linker (ld.so) does.
type linker struct {
	*files
	env    map[string]string
	libs   []string               // what directories returns; nil: it was not called yet
	parsed map[string]*binaryFile // by path
}

func newLinker(f *files, env map[string]string) *linker {
	return &linker{files: f, env: env, parsed: map[string]*binaryFile{}}
}

// directories returns the library directories: those of /etc/ld.so.conf, then systemDirs.
func (l *linker) directories() []string {
	if l.libs == nil {
		configs := 0
		l.config("/etc/ld.so.conf", &configs)
		l.libs = append(l.libs, systemDirs...)
	}
	return l.libs
}

// config reads a file in the format of /etc/ld.so.conf.
func (l *linker) config(name string, configs *int) {
	r, ok := l.open(name)
	if *configs++; !ok || *configs > maxConfigs {
		return
	}
	for line := range strings.Lines(string(l.bytes(&r, 0, 64<<10))) {
		line, _, _ = strings.Cut(line, "#")
		fields := strings.Fields(line)
		switch {
		case len(fields) == 2 && fields[0] == "include":
			pattern := path.Join(path.Dir(name), fields[1])
			if path.IsAbs(fields[1]) {
				pattern = fields[1]
			}
			for _, found := range l.names(path.Dir(pattern), 1000) {
				if match, err := path.Match(path.Base(pattern), found); err == nil && match {
					l.config(path.Join(path.Dir(pattern), found), configs)
				}
			}
		case len(fields) == 1 && path.IsAbs(fields[0]) && len(l.libs) < maxSearchDirs:
			l.libs = append(l.libs, fields[0])
		}
	}
}

// load returns a program and what ld.so loads for it, in this order: the program, ld.so, the
// libraries that the program needs, then those that these need, and so on.
func (l *linker) load(program regular) []object {
	first := object{program, l.elf(program)}
	all := []object{first}
	if first.elf == nil {
		return all
	}
	seen := map[string]bool{program.path: true}
	add := func(r regular, ok bool) {
		if ok && !seen[r.path] && len(all) < maxObjects {
			seen[r.path] = true
			all = append(all, object{r, l.elf(r)})
		}
	}
	if first.elf.interp != "" {
		add(l.open(first.elf.interp))
	}
	for i := 0; i < len(all); i++ {
		if all[i].elf == nil {
			continue
		}
		for _, name := range all[i].elf.needed {
			add(l.library(name, &all[i], &first))
		}
	}
	return all
}

// elf parses a file, or returns the result of an earlier call.
func (l *linker) elf(r regular) *binaryFile {
	e, known := l.parsed[r.path]
	if !known {
		e = parseELF(r.in.Size, func(offset, n int64) []byte { return l.bytes(&r, offset, n) })
		l.parsed[r.path] = e
	}
	return e
}

// library finds the file that ld.so would load for a name that an object needs.
func (l *linker) library(name string, of, program *object) (regular, bool) {
	if strings.Contains(name, "/") {
		return l.open(name)
	}
	var dirs []string
	if len(of.elf.runpath) == 0 {
		dirs = append(dirs, origin(of.elf.rpath, of.path)...)
		if len(program.elf.runpath) == 0 {
			dirs = append(dirs, origin(program.elf.rpath, program.path)...)
		}
	}
	dirs = append(dirs, strings.FieldsFunc(l.env["LD_LIBRARY_PATH"],
		func(r rune) bool { return r == ':' || r == ';' })...)
	dirs = append(dirs, origin(of.elf.runpath, of.path)...)
	for _, dir := range append(dirs, l.directories()...) {
		if !path.IsAbs(dir) {
			continue
		}
		if r, ok := l.open(path.Join(dir, name)); ok {
			return r, true
		}
	}
	return regular{}, false
}

// origin resolves $ORIGIN in an object's library directories.
func origin(dirs []string, of string) []string {
	out := make([]string, 0, len(dirs))
	for _, dir := range dirs[:min(len(dirs), maxSearchDirs)] {
		dir = strings.ReplaceAll(dir, "${ORIGIN}", "$ORIGIN")
		out = append(out, strings.ReplaceAll(dir, "$ORIGIN", path.Dir(of)))
	}
	return out
}
