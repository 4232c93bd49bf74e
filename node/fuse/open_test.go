package fuse

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"
)

// A device is open unless the kernel forgets its file as soon as the file's name is dropped.
func TestIsOpen(t *testing.T) {
	s, k, _ := connect(t, resending)
	id, other := k.add(s, "a", ready{}), k.add(s, "b", ready{})
	for _, name := range []string{id.String(), other.String()} { // in place of the mount
		if err := os.WriteFile(filepath.Join(s.dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	one := func(node uint64) []byte {
		return binary.NativeEndian.AppendUint64(binary.NativeEndian.AppendUint64(nil, node), 1)
	}
	for what, c := range map[string]struct {
		forget func()
		want   bool
	}{
		"nothing is forgotten":      {func() {}, true},
		"another file is forgotten": {func() { k.send(opForget, 3, nodeID(other), make([]byte, 8)) }, true},
		"it is forgotten":           {func() { k.send(opForget, 3, nodeID(id), make([]byte, 8)) }, false},
		"both are forgotten": {func() {
			count := binary.NativeEndian.AppendUint64(nil, 2)
			k.send(opBatchForget, 3, 0, append(append(count, one(nodeID(other))...), one(nodeID(id))...))
		}, false},
		"the request is cut off": {func() { k.send(opBatchForget, 3, 0, make([]byte, 3)) }, true},
	} {
		done := make(chan bool)
		go func() {
			open, err := s.IsOpen(id)
			if err != nil {
				t.Error(err)
			}
			done <- open
		}()
		k.next() // NOTIFY_INVAL_ENTRY
		c.forget()
		if open := <-done; open != c.want {
			t.Errorf("%s: the device is open: %t, want %t", what, open, c.want)
		}
	}
	if err := s.Remove(id); err != nil {
		t.Fatal(err)
	}
	k.next()
	if open, err := s.IsOpen(id); open || err != nil {
		t.Errorf("a removed device is open: %t, %v; want false", open, err)
	}
}
