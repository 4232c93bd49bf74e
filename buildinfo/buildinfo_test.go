package buildinfo

import (
	"runtime"
	"runtime/debug"
	"testing"
)

func TestDescribe(t *testing.T) {
	const commit = "0123456789abcdef0123456789abcdef01234567"
	stamp := func(version, modified string) *debug.BuildInfo {
		return &debug.BuildInfo{Main: debug.Module{Version: version}, Settings: []debug.BuildSetting{
			{Key: "vcs.revision", Value: commit}, {Key: "vcs.time", Value: "2026-11-29T06:00:00Z"},
			{Key: "vcs.modified", Value: modified}}}
	}
	unstamped := &debug.BuildInfo{Main: debug.Module{Version: "(devel)"}}
	committed := Info{Release: "v1.2.3", Commit: commit, Committed: "2026-11-29T06:00:00Z"}
	for what, c := range map[string]struct {
		linked  string
		stamped *debug.BuildInfo
		want    Info
	}{
		"tag":                          {"", stamp("v1.2.3", "false"), committed},
		"modified sources":             {"", stamp("v1.2.3+dirty", "true"), modified(committed, "v1.2.3+dirty")},
		"no git":                       {"", unstamped, Info{Release: "devel"}},
		"no modules":                   {"", nil, Info{Release: "devel"}},
		"no git, but a linked release": {"v2.0.0", unstamped, Info{Release: "v2.0.0"}},
		"linked release and a stamp":   {"v1.2.3", stamp("v0.9.0", "false"), committed},
	} {
		c.want.Go, c.want.OS, c.want.Arch = runtime.Version(), runtime.GOOS, runtime.GOARCH
		if got := describe(c.linked, c.stamped); got != c.want {
			t.Errorf("%s: described as %+v, want %+v", what, got, c.want)
		}
	}
}

// modified returns i for modified sources, with their release.
func modified(i Info, release string) Info {
	i.Release, i.Modified = release, true
	return i
}

func TestRead(t *testing.T) {
	if i := Read(); i.Release == "" || i.Go != runtime.Version() || Release() != i.Release {
		t.Errorf("this program is %+v of release %q, want a release and this version of Go", i, Release())
	}
}
