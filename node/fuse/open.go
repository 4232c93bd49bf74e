package fuse

import (
	"encoding/binary"
	"fmt"
	"path/filepath"

	"golang.org/x/sys/unix"

	"lighter/format/chunk"
)

// IsOpen reports whether the kernel has a device open: a mount of the device's tree exists in some
// mount namespace, perhaps only as a layer of an overlay. If the kernel's answer does not arrive
// within forgetTimeout, the device counts as open.
//
// The kernel forgets a file that nobody has open as soon as the file's name is dropped, and reports
// that with a FORGET. The caller makes sure that nobody opens the device meanwhile, and calls
// IsOpen for one device once at a time.
func (s *Server) IsOpen(id chunk.ID) (bool, error) {
	f := s.device(id)
	if f == nil {
		return false, nil
	}
	s.setForgotten(f, false)
	// The kernel must have a name that it can drop. The name may have been dropped before.
	var stat unix.Stat_t
	if err := unix.Lstat(filepath.Join(s.dir, f.name), &stat); err != nil {
		return true, fmt.Errorf("look up device %s: %w", id.Short(), err)
	}
	s.forgetName(f.name)
	return !s.await(forgetTimeout, func() bool { return f.forgotten }), nil
}

// forget notes that the kernel has forgotten files.
func (s *Server) forget(req request) {
	if req.Opcode == opForget {
		s.noteForgotten(req.NodeId)
		return
	}
	const count, entry = 8, 16 // bytes: the number of entries with padding; a node ID and a number of lookups
	rest := req.bytes[min(len(req.bytes), inHeaderSize+count):]
	for ; len(rest) >= entry; rest = rest[entry:] {
		s.noteForgotten(binary.NativeEndian.Uint64(rest))
	}
}

func (s *Server) noteForgotten(node uint64) {
	if f := s.file(node); f != nil {
		s.setForgotten(f, true)
	}
}

func (s *Server) setForgotten(f *file, forgotten bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f.forgotten = forgotten
}
