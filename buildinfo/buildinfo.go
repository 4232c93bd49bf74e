// Package buildinfo says which build of Lighter a program is: its release, its commit, and the
// version of Go that built it.
//
// All of it was stamped into the program when it was built, so nothing else is read. A build
// without git's history has no commit. A program that `go test` or `go run` has built has neither
// release nor commit.
package buildinfo

import (
	"runtime"
	"runtime/debug"
	"strconv"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// release is the release's name. The linker sets it (-X lighter/buildinfo.release=v1.2.3) when the
// sources come without git's history. Otherwise the go command stamps a name: that of the commit's
// tag, or a pseudo-version, which is a later one than that of the last tag.
var release string

// Unreleased is the name of a release that nothing was stamped about.
const Unreleased = "devel"

// Info describes a build.
type Info struct {
	Release   string `json:"release"`             // v1.2.3; a suffix "+dirty" if the sources were modified
	Commit    string `json:"commit,omitempty"`    // of git
	Committed string `json:"committed,omitempty"` // when the commit was made (RFC 3339)
	Modified  bool   `json:"modified"`            // the sources had changes that were not committed
	Go        string `json:"go"`
	OS        string `json:"os"`
	Arch      string `json:"arch"`
}

// Read returns the description of this program.
var Read = sync.OnceValue(func() Info {
	stamped, _ := debug.ReadBuildInfo() // nil: the program was not built with modules
	return describe(release, stamped)
})

// Release returns the release of this program.
func Release() string { return Read().Release }

// describe returns the description of a program that was built with the given release, if it is not
// empty, and the go command's stamp.
func describe(linked string, stamped *debug.BuildInfo) Info {
	i := Info{Release: linked, Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH}
	if stamped == nil {
		stamped = &debug.BuildInfo{}
	}
	for _, setting := range stamped.Settings {
		switch setting.Key {
		case "vcs.revision":
			i.Commit = setting.Value
		case "vcs.time":
			i.Committed = setting.Value
		case "vcs.modified":
			i.Modified, _ = strconv.ParseBool(setting.Value) // the go command writes nothing else
		}
	}
	if i.Release == "" && stamped.Main.Version != "(devel)" {
		i.Release = stamped.Main.Version
	}
	if i.Release == "" {
		i.Release = Unreleased
	}
	return i
}

// Collector returns the metric lighter_build_info. Its labels have the names that Prometheus' own
// programs use.
func Collector() prometheus.Collector {
	i := Read()
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "lighter_build_info",
		Help: "1, with the release, the commit and the version of Go of the program as labels.",
		ConstLabels: prometheus.Labels{"version": i.Release, "revision": i.Commit, "goversion": i.Go, "goos": i.OS,
			"goarch": i.Arch},
	}, func() float64 { return 1 })
}
