package bench

import (
	"cmp"
	"fmt"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"lighter/buildinfo"
)

// About describes the machine and the time of a run.
type About struct {
	Started    time.Time `json:"started"`
	Version    string    `json:"version"`
	Kernel     string    `json:"kernel"`
	Processors int       `json:"processors"`
	Memory     int64     `json:"memory_bytes"`
}

// AboutRun describes a run that starts now.
func AboutRun() About {
	return About{Started: time.Now().UTC().Truncate(time.Second), Version: buildinfo.Release(), Kernel: kernel(),
		Processors: runtime.NumCPU(), Memory: memory()}
}

// String returns one line.
func (a About) String() string {
	return fmt.Sprintf("Run of %s: version %s, Linux %s, %d processors, %s of memory.",
		a.Started.Format("2006-01-02 15:04 MST"), a.Version, a.Kernel, a.Processors, Size(a.Memory))
}

func kernel() string {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return "unknown"
	}
	return unix.ByteSliceToString(name.Release[:])
}

func memory() int64 {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return 0
	}
	return int64(info.Totalram) * int64(cmp.Or(info.Unit, 1))
}
