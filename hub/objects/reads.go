package objects

import (
	"context"

	"lighter/hub/away"
)

// readErrorOf is errorOf for the error of a read. If the bucket has refused to read this object,
// the error is an away.ReadError. Errors of a directory are not marked, so no job waits for them.
func (s *Store) readErrorOf(key string, err error) error {
	if s.dir == "" && away.IsLasting(err) {
		err = &away.ReadError{Object: "object " + key, Err: err, Works: s.works,
			Remedy: "restore the hub's access to it, or run lighter fsck --deep --repair"}
	}
	return s.errorOf(key, err)
}

// probeKey is the key of the file that works writes and reads. It is no object.
const probeKey = "probe"

// works returns an error if the bucket cannot write and read a small file.
func (s *Store) works(ctx context.Context) error {
	return away.Probe(ctx,
		func(ctx context.Context, b []byte) error { return s.bucket.WriteAll(ctx, probeKey, b, nil) },
		func(ctx context.Context) ([]byte, error) { return s.bucket.ReadAll(ctx, probeKey) })
}
