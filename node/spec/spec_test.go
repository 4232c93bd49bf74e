package spec_test

import (
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"

	"lighter/node/spec"
)

// rootFS makes a root file system with the users root, app (7:8, also in group 9) and many, whose
// /etc/passwd is an absolute symbolic link, as on some distributions.
func rootFS(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	if err := errors.Join(os.MkdirAll(filepath.Join(root, "etc"), 0o755), os.Mkdir(filepath.Join(root, "store"), 0o755),
		os.WriteFile(filepath.Join(root, "store/passwd"), []byte("root:x:0:0::/:\napp:x:7:8::/:\n"), 0o600),
		os.WriteFile(filepath.Join(root, "etc/group"), []byte("root:x:0:\nmore:x:9:app\n"), 0o600),
		os.Symlink("/store/passwd", filepath.Join(root, "etc/passwd"))); err != nil {
		t.Fatal(err)
	}
	return root
}

// image returns the text of a config for linux.
func image(t *testing.T, config v1.ImageConfig) []byte {
	t.Helper()
	text, err := json.Marshal(v1.Image{Platform: v1.Platform{OS: "linux", Architecture: "amd64"}, Config: config})
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func newSpec(t *testing.T, root string, config v1.ImageConfig, o spec.Options) *spec.Spec {
	t.Helper()
	s, err := spec.New(t.Context(), image(t, config), root, "c1", o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// The image decides about the process, and the options override the image.
func TestProcess(t *testing.T) {
	config := v1.ImageConfig{Entrypoint: []string{"/start"}, Cmd: []string{"a"}, Env: []string{"PATH=/p", "X=1"},
		WorkingDir: "srv/data", User: "app", Labels: map[string]string{"vendor": "us"}, StopSignal: "SIGQUIT",
		ExposedPorts: map[string]struct{}{"80/tcp": {}, "443/tcp": {}}}
	root := rootFS(t)
	s := newSpec(t, root, config, spec.Options{})
	p := s.Process
	if !slices.Equal(p.Args, []string{"/start", "a"}) || p.Cwd != "/srv/data" || !slices.Equal(p.Env, config.Env) {
		t.Errorf("process %q in %s with %q, want the image's", p.Args, p.Cwd, p.Env)
	}
	if p.User.UID != 7 || p.User.GID != 8 || !slices.Contains(p.User.AdditionalGids, 9) {
		t.Errorf("user %+v, want 7:8 with group 9", p.User)
	}
	for name, want := range map[string]string{"vendor": "us", "org.opencontainers.image.stopSignal": "SIGQUIT",
		"org.opencontainers.image.os": "linux", "org.opencontainers.image.exposedPorts": "443/tcp,80/tcp"} {
		if got := s.Annotations[name]; got != want {
			t.Errorf("annotation %s is %q, want %q", name, got, want)
		}
	}
	if s.Root.Path != spec.Root || s.Root.Readonly || p.Terminal || s.Linux.CgroupsPath != "/lighter/c1" {
		t.Errorf("root %+v, terminal %t, cgroup %s; want a writable %s, no terminal, /lighter/c1", s.Root, p.Terminal,
			s.Linux.CgroupsPath, spec.Root)
	}
	s = newSpec(t, root, config, spec.Options{Args: []string{"b", "c"}, Env: []string{"X=2", "Y=3"}, User: "12:more",
		Dir: "/other", ReadOnly: true, Terminal: true, Rows: 33, Columns: 77})
	p = s.Process
	if !slices.Equal(p.Args, []string{"/start", "b", "c"}) || p.Cwd != "/other" ||
		!slices.Equal(p.Env, []string{"PATH=/p", "X=2", "Y=3", "TERM=xterm"}) || p.User.UID != 12 || p.User.GID != 9 {
		t.Errorf("process %q in %s with %q as %+v, want the options'", p.Args, p.Cwd, p.Env, p.User)
	}
	if !s.Root.Readonly || !p.Terminal || p.ConsoleSize == nil || *p.ConsoleSize != (specs.Box{Height: 33, Width: 77}) {
		t.Errorf("read-only %t, terminal %t of %v; want both, and 33 rows of 77", s.Root.Readonly, p.Terminal,
			p.ConsoleSize)
	}
	if s.Version != "1.0.2" {
		t.Errorf("version %s, want one that the oldest runtimes read", s.Version)
	}
	s = newSpec(t, root, config, spec.Options{Entrypoint: "/bin/sh"})
	if !slices.Equal(s.Process.Args, []string{"/bin/sh"}) {
		t.Errorf("with another entrypoint: %q, want /bin/sh alone", s.Process.Args)
	}
}

// What is wrong with an image or a user is named.
func TestRefusals(t *testing.T) {
	command := v1.ImageConfig{Cmd: []string{"a"}}
	root := rootFS(t)
	empty := t.TempDir()
	secret := filepath.Join(t.TempDir(), "passwd")
	if err := os.WriteFile(secret, []byte("outside:x:5:5::/:\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	escape := t.TempDir()
	if err := errors.Join(os.Mkdir(filepath.Join(escape, "etc"), 0o755),
		os.Symlink("../../../../../../../.."+secret, filepath.Join(escape, "etc/passwd"))); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		root   string
		config v1.ImageConfig
		user   string
		want   string
	}{
		"no command":        {root, v1.ImageConfig{}, "", "neither entrypoint nor command"},
		"an unknown user":   {root, command, "nobody", `user "nobody" is not in the image's /etc/passwd`},
		"an unknown group":  {root, command, "app:none", `group of user "app:none" is not in the image's /etc/group`},
		"no users at all":   {empty, command, "app", `no /etc/passwd`},
		"too large a user":  {root, command, "4294967295", "out of range"},
		"users outside":     {escape, command, "outside", `user "outside"`},
		"two colons":        {root, command, "a:b:c", "a:b:c"},
		"the image's user":  {root, v1.ImageConfig{Cmd: []string{"a"}, User: "gone"}, "", `user "gone"`},
		"a broken override": {root, v1.ImageConfig{Cmd: []string{"a"}, User: "app"}, "gone", `user "gone"`},
	} {
		_, err := spec.New(t.Context(), image(t, c.config), c.root, "c1", spec.Options{User: c.user})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want an error with %q", name, err, c.want)
		}
	}
	for text, want := range map[string]string{"{": "parse", `{"os":"windows","config":{"Cmd":["a"]}}`: "windows"} {
		if _, err := spec.New(t.Context(), []byte(text), root, "c1", spec.Options{}); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("config %s: got %v, want an error with %q", text, err, want)
		}
	}
}

// An image without users runs as root, or as the number that the options name.
func TestNoUsers(t *testing.T) {
	for user, want := range map[string]uint32{"": 0, "0": 0, "1000": 1000, "1000:1000": 1000} {
		s := newSpec(t, t.TempDir(), v1.ImageConfig{Cmd: []string{"a"}}, spec.Options{User: user})
		if s.Process.User.UID != want {
			t.Errorf("user %q is %+v, want %d", user, s.Process.User, want)
		}
	}
}

// The network of the machine brings its resolver's files; without it there is only a host name.
func TestNetworks(t *testing.T) {
	for network, own := range map[spec.Network]bool{"": false, spec.NetworkHost: false, spec.NetworkNone: true} {
		s := newSpec(t, rootFS(t), v1.ImageConfig{Cmd: []string{"a"}}, spec.Options{Network: network, Hostname: "c1"})
		isNet := func(n specs.LinuxNamespace) bool { return n.Type == specs.NetworkNamespace }
		isHosts := func(m specs.Mount) bool { return m.Destination == "/etc/hosts" }
		if got := slices.ContainsFunc(s.Linux.Namespaces, isNet); got != own {
			t.Errorf("network %q: its own is %t, want %t", network, got, own)
		}
		if got := slices.ContainsFunc(s.Mounts, isHosts); got == own {
			t.Errorf("network %q: /etc/hosts of the machine is %t, want %t", network, got, !own)
		}
		if got := s.Hostname == "c1"; got != own {
			t.Errorf("network %q: the host's name is %s", network, s.Hostname)
		}
	}
}

// Limits are those of the options. The limit of open files is never above the caller's.
func TestLimits(t *testing.T) {
	s := newSpec(t, rootFS(t), v1.ImageConfig{Cmd: []string{"a"}},
		spec.Options{Memory: 64 << 20, CPUs: 1.5, Files: 512})
	r := s.Linux.Resources
	if *r.Memory.Limit != 64<<20 || *r.CPU.Quota != 150_000 || *r.CPU.Period != 100_000 {
		t.Errorf("memory %d, quota %d of %d; want 64 MiB and 1.5 processors", *r.Memory.Limit, *r.CPU.Quota,
			*r.CPU.Period)
	}
	if l := s.Process.Rlimits; len(l) != 1 || l[0].Hard != 512 || l[0].Soft != 512 {
		t.Errorf("limits %+v, want 512 open files", l)
	}
	for what, o := range map[string]spec.Options{"network": {Network: "bridge"}, "memory": {Memory: 1 << 20},
		"processors": {CPUs: -1}, "NaN processors": {CPUs: math.NaN()}} {
		if err := o.Check(); err == nil {
			t.Errorf("wrong %s: got no error", what)
		}
	}
	if err := (&spec.Options{Network: spec.NetworkNone, Memory: 64 << 20, CPUs: 0.5}).Check(); err != nil {
		t.Errorf("good options: got %v", err)
	}
}

// In a user namespace, a container has no cgroup, and sees the machine's /sys with its network.
func TestRootless(t *testing.T) {
	for network, kind := range map[spec.Network]string{spec.NetworkHost: "bind", spec.NetworkNone: "sysfs"} {
		s := newSpec(t, rootFS(t), v1.ImageConfig{Cmd: []string{"a"}}, spec.Options{Rootless: true, Network: network})
		if s.Linux.Resources != nil || s.Linux.CgroupsPath != "" {
			t.Errorf("network %s: resources %+v, cgroup %q; want none", network, s.Linux.Resources, s.Linux.CgroupsPath)
		}
		for _, m := range s.Mounts {
			if m.Type == "cgroup" || m.Destination == "/sys" && m.Type != kind {
				t.Errorf("network %s: the mount %+v, want no cgroup, and /sys of type %s", network, m, kind)
			}
		}
		if masked := slices.Contains(s.Linux.MaskedPaths, "/sys/fs"); masked != (kind == "bind") {
			t.Errorf("network %s: the masked paths are %v", network, s.Linux.MaskedPaths)
		}
	}
	for want, o := range map[string]spec.Options{
		"systemd-run --user --scope -p CPUQuota=150% lighter run":                       {CPUs: 1.5},
		"systemd-run --user --scope -p MemoryMax=67108864 -p CPUQuota=100% lighter run": {CPUs: 1, Memory: 64 << 20},
	} {
		o.Rootless = true
		if err := o.Check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("limits in a user namespace: got %v, want an error with the way out: %s", err, want)
		}
	}
}

func TestVolumes(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	for text, want := range map[string]spec.Volume{
		dir + ":/data":       {Source: dir, Target: "/data"},
		dir + ":/a/../b/:ro": {Source: dir, Target: "/b", ReadOnly: true},
		".:/data:rw":         {Source: dir, Target: "/data"},
	} {
		if got, err := spec.ParseVolume(text); err != nil || got != want {
			t.Errorf("%s is %+v, %v; want %+v", text, got, err, want)
		}
	}
	for text, want := range map[string]string{"": "two paths", dir: "two paths", "data:/data": "no named volumes",
		dir + "/none:/data": "no such file", dir + ":data": "absolute", dir + ":/": "below the root",
		dir + ":/a:rx":   "rx",
		dir + ":/a:ro:x": "two paths"} {
		if _, err := spec.ParseVolume(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want an error with %q", text, err, want)
		}
	}
	s := newSpec(t, rootFS(t), v1.ImageConfig{Cmd: []string{"a"}},
		spec.Options{Volumes: []spec.Volume{{Source: dir, Target: "/data", ReadOnly: true}}})
	if last := s.Mounts[len(s.Mounts)-1]; last.Destination != "/data" || !slices.Contains(last.Options, "ro") {
		t.Errorf("the last mount is %+v, want the volume, read-only", last)
	}
}

func TestEnvironment(t *testing.T) {
	t.Setenv("LIGHTER_SET", "here")
	got, err := spec.Environment([]string{"A=1", "LIGHTER_SET", "LIGHTER_UNSET", "B="})
	if want := []string{"A=1", "LIGHTER_SET=here", "B="}; err != nil || !slices.Equal(got, want) {
		t.Errorf("got %q, %v; want %q", got, err, want)
	}
	if _, err := spec.Environment([]string{"=1"}); err == nil {
		t.Error("a variable without a name: got no error")
	}
}
