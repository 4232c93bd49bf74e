package install

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// machine returns a machine on which systemd runs. Its systemctl appends its arguments to the
// returned file, and then runs the given shell script.
func machine(t *testing.T, script string) (m Machine, calls string) {
	t.Helper()
	dir := t.TempDir()
	m, calls = Machine{System: filepath.Join(dir, "root")}, filepath.Join(dir, "calls")
	program := fmt.Sprintf("#!/bin/sh\necho \"$*\" >> %s\n%s\n", calls, script)
	if err := errors.Join(os.MkdirAll(m.Path("run/systemd/system"), 0o755), os.WriteFile(calls, nil, 0o644),
		os.WriteFile(filepath.Join(dir, "systemctl"), []byte(program), 0o755)); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	return m, calls
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// file makes a file and returns what Read says about it.
func file(t *testing.T, name, text string) Text {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o640); err != nil {
		t.Fatal(err)
	}
	got, err := Read(path)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func fine(context.Context) error { return nil }

// plan changes two files and makes a third in a new directory.
func plan(t *testing.T) *Plan {
	a, b := file(t, "a", "one\n"), file(t, "b", "two\n")
	made := Change{Path: filepath.Join(filepath.Dir(a.Path), "new/c"), New: []byte("3\n"), Directory: true}
	return &Plan{Target: "test", Changes: append(append(a.To([]byte("1\n")), b.To([]byte("2\n"))...), made),
		Restart: Restart{What: "the service", Units: []string{"x.service"}, Verify: fine}}
}

// contents returns the contents of a plan's files; "-": no file.
func contents(p *Plan) (all string) {
	for _, c := range p.Changes {
		b, err := os.ReadFile(c.Path)
		if err != nil {
			b = []byte("-\n")
		}
		all += string(b)
	}
	return all
}

// A plan is carried out in order, and a second plan undoes it. Modes stay, and nothing is left.
func TestApply(t *testing.T) {
	m, calls := machine(t, "")
	p := plan(t)
	p.Before, p.After = []Step{m.Systemctl("stop", "y")}, []Step{m.Systemctl("daemon-reload")}
	p.Check = func(_ context.Context, staged map[string]string) error {
		if len(staged) != 3 || read(t, staged[p.Changes[0].Path]) != "1\n" || contents(p) != "one\ntwo\n-\n" {
			t.Errorf("at the check: staged %v, files %q; want the new and the old contents", staged, contents(p))
		}
		return nil
	}
	r, err := m.Apply(t.Context(), p, Options{Restart: true})
	if err != nil || contents(p) != "1\n2\n3\n" {
		t.Errorf("got files %q, %v; want the new contents", contents(p), err)
	}
	if want := "stop y\ndaemon-reload\nrestart x.service\n"; read(t, calls) != want || len(r.Done) != 3 {
		t.Errorf("got the calls %q, report %+v; want %q", read(t, calls), r, want)
	}
	if len(r.Files) != 3 || r.Files[0].Action != "change" || r.Files[2].Action != "create" ||
		!strings.Contains(r.Files[0].Diff, "-one\n+1\n") || !strings.HasPrefix(r.Files[2].Diff, "--- /dev/null\n") {
		t.Errorf("got the report %+v, want three files with unified diffs", r.Files)
	}
	info, err := os.Stat(p.Changes[0].Path)
	if err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("mode of a changed file: got %v (%v), want 0640", info.Mode(), err)
	}
	if _, err := m.Apply(t.Context(), &Plan{Changes: inverse(p.Changes)}, Options{}); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(filepath.Dir(p.Changes[0].Path))
	if err != nil || contents(p) != "one\ntwo\n-\n" || len(entries) != 1 {
		t.Errorf("after the second plan: files %q, directory %v (%v); want the old contents alone", contents(p),
			entries, err)
	}
}

// A plan that fails changes nothing, and leaves nothing behind.
func TestApplyFails(t *testing.T) {
	for what, spoil := range map[string]func(p *Plan){
		"check": func(p *Plan) {
			p.Check = func(context.Context, map[string]string) error { return errors.New("wrong") }
		},
		"step": func(p *Plan) {
			p.Before = []Step{{"stop", func(context.Context) error { return errors.New("wrong") }}}
		},
		"changed": func(p *Plan) { p.Changes[1].Old = []byte("before\n") },
		"made":    func(p *Plan) { p.Changes[1].Old = nil },
		"dry run": func(*Plan) {},
	} {
		m, calls := machine(t, "")
		p := plan(t)
		spoil(p)
		_, err := m.Apply(t.Context(), p, Options{Restart: true, DryRun: what == "dry run"})
		if (err == nil) != (what == "dry run") || contents(p) != "one\ntwo\n-\n" || read(t, calls) != "" {
			t.Errorf("%s: got files %q, calls %q, %v; want nothing changed", what, contents(p), read(t, calls), err)
		}
		for _, c := range p.Changes {
			if !Missing(c.Path+stagedSuffix) || c.Directory && !Missing(filepath.Dir(c.Path)) {
				t.Errorf("%s: files for %s are left", what, c.Path)
			}
		}
	}
}

// Without --restart, or without systemd, the report names what the user has to restart. A service
// is restarted only if its files have changed, or if a restart was still due.
func TestRestartIsTheUsersWish(t *testing.T) {
	m, calls := machine(t, "")
	r, err := m.Apply(t.Context(), plan(t), Options{})
	if err != nil || len(r.Next) != 1 || r.Next[0] != "systemctl restart x.service" {
		t.Errorf("without --restart: got %+v, %v; want the command", r, err)
	}
	p := &Plan{Restart: Restart{Units: []string{"x.service"}, Verify: fine}}
	if r, err = m.Apply(t.Context(), p, Options{Restart: true}); err != nil || len(r.Done)+len(r.Next) > 0 {
		t.Errorf("nothing to do: got %+v, %v; want nothing done", r, err)
	}
	p = plan(t)
	for i := range p.Changes {
		p.Changes[i].Live = true
	}
	if r, err = m.Apply(t.Context(), p, Options{Restart: true}); err != nil || len(r.Done)+len(r.Next) > 0 {
		t.Errorf("files that are read without a restart: got %+v, %v; want nothing done", r, err)
	}
	if err := os.RemoveAll(m.Path("run")); err != nil {
		t.Fatal(err)
	}
	r, err = m.Apply(t.Context(), plan(t), Options{Restart: true})
	if err != nil || len(r.Next) != 1 || !strings.Contains(r.Next[0], "restart the service") || read(t, calls) != "" {
		t.Errorf("without systemd: got %+v, calls %q, %v; want an advice", r, read(t, calls), err)
	}
}

// A service that does not come back gets its previous configuration, and is restarted with it. So
// it is if the run before was killed after it had changed the files.
func TestRollBack(t *testing.T) {
	dead := func(context.Context) error { return errors.New("no answer") }
	for what, c := range map[string]struct {
		script string
		verify func(context.Context) error
		want   string
	}{
		"does not start":  {`[ -e $0.n ] || { echo > $0.n; echo broken; exit 1; }`, fine, "broken"},
		"does not answer": {"", dead, "no answer"},
		"never starts":    {"exit 3", fine, "does not start with it"},
	} {
		m, calls := machine(t, c.script)
		p := plan(t)
		p.Restart.Verify = c.verify
		_, err := m.Apply(t.Context(), p, Options{Restart: true})
		if err == nil || !strings.Contains(err.Error(), c.want) || contents(p) != "one\ntwo\n-\n" ||
			!strings.HasSuffix(read(t, calls), "restart x.service\ndaemon-reload\nreset-failed x.service\n"+
				"restart x.service\n") {
			t.Errorf("%s: got files %q, calls %q, %v; want the old contents, two restarts, and %q", what, contents(p),
				read(t, calls), err, c.want)
		}
		p = plan(t)
		p.Changes, p.Restart.Fallback, p.Restart.Due, p.Restart.Verify = nil, p.Changes, true, dead
		done := &Plan{Changes: p.Restart.Fallback}
		if _, err := m.Apply(t.Context(), p, Options{Restart: true}); err == nil || contents(done) != "1\n2\n3\n" {
			t.Errorf("%s, fallback: got files %q, %v; want those of the fallback", what, contents(done), err)
		}
	}
}

// After SIGKILL at any point, the next run completes the plan.
func TestKilled(t *testing.T) {
	const variable = "LIGHTER_TEST_KILLED"
	kill := func(context.Context) error { return syscall.Kill(os.Getpid(), syscall.SIGKILL) }
	build := func(dir, point string) *Plan {
		p := &Plan{}
		for _, name := range []string{"a", "b"} {
			text, err := Read(filepath.Join(dir, name))
			if err != nil {
				t.Fatal(err)
			}
			p.Changes = append(p.Changes, text.To([]byte("new\n"))...)
		}
		switch point {
		case "check":
			p.Check = func(ctx context.Context, _ map[string]string) error { return kill(ctx) }
		case "before":
			p.Before = []Step{{"", kill}}
		case "after":
			p.After = []Step{{"", kill}}
		case "half":
			p.Changes = p.Changes[:1]
			p.After = []Step{{"", kill}}
		}
		return p
	}
	if dir := os.Getenv(variable); dir != "" {
		_, err := Machine{}.Apply(t.Context(), build(dir, filepath.Base(dir)), Options{})
		t.Fatalf("the process lives: %v", err)
	}
	for _, point := range []string{"check", "before", "half", "after"} {
		dir := filepath.Join(t.TempDir(), point)
		if err := errors.Join(os.Mkdir(dir, 0o755),
			os.WriteFile(filepath.Join(dir, "a"), []byte("old\n"), 0o644)); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(os.Args[0], "-test.run=^TestKilled$")
		cmd.Env = append(os.Environ(), variable+"="+dir)
		if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(err.Error(), "killed") {
			t.Fatalf("%s: the process ended with %v, want SIGKILL: %s", point, err, out)
		}
		p := build(dir, "")
		if _, err := (Machine{}).Apply(t.Context(), p, Options{}); err != nil {
			t.Errorf("%s: the next run: %v", point, err)
		}
		entries, err := os.ReadDir(dir)
		if err != nil || len(entries) != 2 || contents(&Plan{Changes: []Change{{Path: filepath.Join(dir, "a")},
			{Path: filepath.Join(dir, "b")}}}) != "new\nnew\n" {
			t.Errorf("%s: after the next run the directory has %v (%v), want the new files alone", point, entries, err)
		}
	}
}

// Read refuses files that others could change, and follows links.
func TestRead(t *testing.T) {
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	if err := errors.Join(os.WriteFile(path("file"), []byte("x"), 0o644), os.Symlink("file", path("link")),
		os.Symlink("nowhere", path("dangling")), os.WriteFile(path("open"), nil, 0o600), os.Chmod(path("open"), 0o666),
		os.Mkdir(path("shared"), 0o755), os.Chmod(path("shared"), 0o777),
		os.WriteFile(path("shared/file"), nil, 0o644), os.WriteFile(path("empty"), nil, 0o644)); err != nil {
		t.Fatal(err)
	}
	real, err := filepath.EvalSymlinks(path("file"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"file", "link"} {
		if got, err := Read(path(name)); err != nil || got.Path != real || string(got.Bytes) != "x" {
			t.Errorf("%s: got %+v, %v; want the file", name, got, err)
		}
	}
	if got, err := Read(path("empty")); err != nil || got.Bytes == nil {
		t.Errorf("an empty file: got %v, %v; want a text that is not nil", got.Bytes, err)
	}
	for _, name := range []string{"none", "no/dir/none"} {
		if got, err := Read(path(name)); err != nil || got.Bytes != nil || filepath.Base(got.Path) != "none" {
			t.Errorf("%s: got %+v, %v; want no file", name, got, err)
		}
	}
	for name, want := range map[string]string{"dangling": "symbolic link", "open": "chmod go-w",
		"shared/file": "chmod go-w", "shared/none": "chmod go-w", "shared": "chmod go-w", ".": "not a regular file"} {
		refused := (*Refused)(nil)
		if _, err := Read(path(name)); !errors.As(err, &refused) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want a refusal with %q", name, err, want)
		}
	}
	if err := Trusted(path("open")); err == nil || !strings.Contains(err.Error(), "must not run as root") {
		t.Errorf("a program that all may write: got %v, want an error", err)
	}
}

// A link stays when the file behind it is replaced.
func TestLinksStay(t *testing.T) {
	target := file(t, "file", "old\n")
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(target.Path, link); err != nil {
		t.Fatal(err)
	}
	text, err := Read(link)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := (Machine{}).Apply(t.Context(), &Plan{Changes: text.To([]byte("new\n"))}, Options{}); err != nil {
		t.Fatal(err)
	}
	info, err := os.Lstat(link)
	if err != nil || info.Mode().Type() != fs.ModeSymlink || read(t, target.Path) != "new\n" {
		t.Errorf("got %v, %v, contents %q; want a link to the new contents", info, err, read(t, target.Path))
	}
}

// A process is restarted by the unit of its cgroup. Programs of a user's session, and a user's own
// services, are not restarted: their user has to do it.
func TestUnits(t *testing.T) {
	m := Machine{System: t.TempDir()}
	const user = "0::/user.slice/user-1000.slice/"
	for text, want := range map[string]string{
		"0::/system.slice/containerd.service\n":                             "containerd.service",
		"12:cpu:/\n0::/system.slice/k3s.service/containerd\n":               "k3s.service",
		"0::/system.slice/docker-0.scope/system.slice/containerd.service\n": "containerd.service",
		"0::/\n": "default",
		"":       "default",
		user + "user@1000.service/app.slice/docker.service\n":       "user 1000 --user restart docker.service",
		user + "user@1000.service/app.slice/app-terminal-1.scope\n": "user 1000 started it",
		user + "session-3.scope\n":                                  "user 1000 started it",
	} {
		if err := errors.Join(os.MkdirAll(m.Path("proc/7"), 0o755),
			os.WriteFile(m.Path("proc/7/cgroup"), []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
		p := &Plan{Restart: m.RestartOf("Docker", 7, "default")}
		if before, by, byHand := strings.Cut(want, "user 1000 "); !byHand {
			if got := strings.Join(p.Restart.Units, " "); got != before {
				t.Errorf("%q: got %s, want %s", text, got, want)
			}
			continue
		} else if !strings.Contains(p.Restart.ByHand, by) {
			t.Errorf("%q: got %q, want user 1000 and %q", text, p.Restart.ByHand, by)
		}
		p.Restart.Due = true
		r, err := m.Apply(t.Context(), p, Options{Restart: true})
		if err != nil || len(r.Done) > 0 || len(r.Next) != 1 || !strings.Contains(r.Next[0], "user 1000") {
			t.Errorf("%q: done %q, next %q, %v; want what the user has to do", text, r.Done, r.Next, err)
		}
	}
}

// Await asks until the answer is right, and returns the last error when the time is over.
func TestAwait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked, started := 0, time.Now()
		answer := func(right int) func(context.Context) error {
			asked = 0
			return func(context.Context) error {
				if asked++; asked == right {
					return nil
				}
				return fmt.Errorf("answer %d", asked)
			}
		}
		if err := Await(t.Context(), time.Minute, answer(3)); err != nil || asked != 3 {
			t.Errorf("got %v after %d answers, want none after 3", err, asked)
		}
		err := Await(t.Context(), time.Second, answer(0))
		if err == nil || err.Error() != fmt.Sprintf("answer %d", asked) || time.Since(started) > 2*time.Second {
			t.Errorf("got %v after %d answers and %v, want the last answer after a second", err, asked,
				time.Since(started))
		}
	})
}

func TestLastLine(t *testing.T) {
	for output, want := range map[string]string{"": "", "one": "one", "one\ntwo \n\n": "two"} {
		if got := LastLine([]byte(output)); got != want {
			t.Errorf("%q: got %q, want %q", output, got, want)
		}
	}
}
