package guess

import (
	"path"
	"regexp"
	"strings"
)

// runtimes are programs that users often run instead of the one that the image's config names. An
// element is a name, or a pattern for glob.
var runtimes = []string{
	"bash", "sh", "python3", "python", "node", "java", "/usr/lib/gcc/*/*/cc1", "/usr/lib/gcc/*/*/cc1plus", "gcc",
	"/usr/lib/R/bin/exec/R", "perl", "ruby", "php", "julia", "/usr/lib/postgresql/*/bin/postgres", "postgres", "nginx",
	"redis-server", "mysqld", "httpd",
}

// wellKnown are files that many programs read when they start.
var wellKnown = []string{
	"/etc/passwd", "/etc/group", "/etc/nsswitch.conf", "/etc/localtime",
	"/usr/lib/locale/C.utf8/LC_CTYPE", "/usr/lib/x86_64-linux-gnu/gconv/gconv-modules.cache",
	"/usr/lib/aarch64-linux-gnu/gconv/gconv-modules.cache",
}

// arguments adds what a program reads besides its libraries: what its language runtime reads first,
// and the files that the command line names.
func (g *guesser) arguments(program regular, argv []string) {
	for _, name := range wellKnown {
		g.takeFile(name)
	}
	base := path.Base(program.path)
	switch {
	case isShell(base):
		g.shell(argv)
		return
	case pythonName.MatchString(base):
		if p := g.python(program, argv); p != nil {
			p.begin()
			p.run(argv)
		}
	case base == "java":
		g.java(program)
	case strings.Contains(base, "gcc") || strings.Contains(base, "g++"):
		g.gcc()
	case base == "R" || base == "Rscript":
		g.r()
	}
	for _, arg := range argv[min(1, len(argv)):] {
		if r, ok := g.open(g.absolute(arg)); ok && arg != "" {
			g.take(&r, span{0, maxScript})
		}
	}
}

func isShell(base string) bool {
	switch base {
	case "sh", "bash", "dash", "ash", "busybox", "zsh", "ksh":
		return true
	}
	return false
}

// shell adds the programs that a shell script or command line runs.
func (g *guesser) shell(argv []string) {
	if g.depth++; g.depth > 3 {
		return
	}
	text := ""
	for i, arg := range argv[min(1, len(argv)):] {
		if arg == "-c" && i+2 < len(argv) {
			text = argv[i+2]
			break
		}
		if strings.HasPrefix(arg, "-") {
			continue
		}
		if r, ok := g.open(g.absolute(arg)); ok {
			g.take(&r, span{0, maxScript})
			text = string(g.bytes(&r, 0, 64<<10))
		}
		// A script often ends with running its arguments.
		text += "\n" + strings.Join(argv[min(i+2, len(argv)):], " ")
		break
	}
	ran := map[string]bool{}
	for _, words := range commands(text) {
		program, ok := g.command(words)
		if !ok || ran[program.path] || len(ran) == maxCommands {
			continue
		}
		ran[program.path] = true
		g.run(program, words)
	}
}

var (
	separators = regexp.MustCompile("[;&|\n(){}`]+")
	builtins   = map[string]bool{"echo": true, "test": true, "[": true, "printf": true, "true": true, "false": true,
		"kill": true, "pwd": true}
)

// commands splits a shell script into possible command lines. It knows only separators and quotes.
func commands(text string) (out [][]string) {
	for _, line := range separators.Split(text, 4096) {
		words := strings.Fields(line)
		for len(words) > 0 && skipped(words[0]) {
			words = words[1:]
		}
		for i := range words {
			words[i] = strings.Trim(words[i], `"'`)
		}
		if len(words) > 0 && words[0] != "" && !strings.HasPrefix(words[0], "#") && !builtins[words[0]] {
			out = append(out, words)
		}
	}
	return out
}

// skipped reports whether a word only precedes a command.
func skipped(word string) bool {
	switch word {
	case "exec", "if", "then", "else", "elif", "while", "until", "do", "!", "time", "nohup", "command", "env":
		return true
	}
	name, _, assigned := strings.Cut(word, "=")
	return assigned && !strings.ContainsAny(name, "/.-$")
}

// java adds what a Java virtual machine reads first: libraries that it loads by name, and the index
// of its modules.
func (g *guesser) java(program regular) {
	home := path.Dir(path.Dir(program.path))
	for _, name := range []string{
		"lib/jvm.cfg", "lib/server/libjvm.so", "lib/libjimage.so", "lib/libjava.so", "lib/libnio.so", "lib/libnet.so",
		"lib/libzip.so", "lib/libverify.so", "lib/server/classes.jsa", "lib/modules", "conf/security/java.security",
		"lib/tzdb.dat",
	} {
		r, ok := g.open(path.Join(home, name))
		switch {
		case !ok:
		case strings.HasSuffix(name, ".so"):
			g.binary(r, maxCode)
		case strings.HasSuffix(name, ".jsa"):
			g.take(&r, span{0, maxCode})
		default:
			g.take(&r, span{0, maxScript})
		}
	}
}

// gcc adds the programs that the compiler driver runs besides the compilers.
func (g *guesser) gcc() {
	for _, pattern := range []string{"/usr/bin/as", "/usr/lib/gcc/*/*/collect2", "/usr/bin/ld",
		"/usr/lib/gcc/*/*/liblto_plugin.so"} {
		for _, found := range g.glob(pattern) {
			if r, ok := g.open(found); ok {
				g.binary(r, maxCode)
			}
		}
	}
}

// r adds what R reads first.
func (g *guesser) r() {
	for _, home := range []string{"/usr/lib/R", "/usr/local/lib/R"} {
		if _, ok := g.open(path.Join(home, "bin/exec/R")); ok {
			for _, pkg := range []string{"compiler", "base", "methods", "datasets", "utils", "grDevices", "graphics",
				"stats"} {
				for _, file := range []string{"R/" + pkg, "R/" + pkg + ".rdx", "R/" + pkg + ".rdb",
					"Meta/package.rds"} {
					g.takeFile(path.Join(home, "library", pkg, file))
				}
				if r, ok := g.open(path.Join(home, "library", pkg, "libs", pkg+".so")); ok {
					g.binary(r, maxCode)
				}
			}
		}
	}
}
