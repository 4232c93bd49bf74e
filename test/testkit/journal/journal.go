// Package journal makes a FUSE connection look as if the kernel was older than Linux 6.9, and could
// not resend requests. So the connection's next server keeps a journal. The kernel itself behaves
// as before: it resends requests only if a server asks it to.
package journal

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"os"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"lighter/node/fuse"
)

// size is the size of a journal in bytes, a multiple of the size of a slot. Only used slots take
// memory.
const size = 16 << 20

// New returns an empty journal, as a server keeps it beside its connection.
func New() (*os.File, error) {
	fd, err := unix.MemfdCreate("lighter-journal", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make a journal: %w", err)
	}
	file := os.NewFile(uintptr(fd), "journal")
	return file, file.Truncate(size)
}

// State returns the state that a connection in state s would have if the kernel could not resend
// requests.
func State(s fuse.State) fuse.State {
	s.Flags &^= gofuse.CAP_HAS_RESEND
	return s
}

// Note returns a copy of a keeper's note, with the connection's state changed as by State.
func Note(note []byte) ([]byte, error) {
	fields := map[string]any{}
	var kept struct{ State fuse.State }
	if err := json.Unmarshal(note, &fields); err != nil {
		return nil, err
	}
	if err := json.Unmarshal(note, &kept); err != nil {
		return nil, err
	}
	fields["state"] = State(kept.State)
	return json.Marshal(fields)
}

// Mount does what fuse.Mount does on a kernel that cannot resend requests.
func Mount(dir string, log *slog.Logger) (*fuse.Server, error) {
	mounted, err := fuse.Mount(dir, log)
	if err != nil {
		return nil, err
	}
	journal, err := New()
	if err != nil {
		return nil, err
	}
	kept, err := mounted.Descriptors()
	if err == nil {
		err = mounted.Detach()
	}
	if err != nil {
		return nil, err
	}
	return fuse.Adopt(append(kept, journal), dir, State(mounted.State()), log)
}
