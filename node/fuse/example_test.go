package fuse_test

import (
	"context"
	"log/slog"
	"time"

	"lighter/format/chunk"
	"lighter/node/fuse"
)

// zeros is a fuse.Reader of zeros.
type zeros struct{}

func (zeros) ReadAt(_ context.Context, dst []byte, _ int64) (missed int64, err error) {
	clear(dst)
	return 0, nil
}

// A server mounts a directory, serves one device in it, and unmounts it again. This needs root.
func ExampleMount() {
	log := slog.Default()
	server, err := fuse.Mount("/run/devices", log)
	if err != nil {
		log.Error("not mounted", "err", err)
		return
	}
	path, err := server.Add(chunk.Sum([]byte("zeros")), 1<<20, zeros{})
	if err != nil {
		log.Error("device not added", "err", err)
		return
	}
	log.Info("device added", "path", path)
	go func() {
		time.Sleep(time.Minute)
		_ = server.Unmount(time.Second) // ends Serve
	}()
	if err := server.Serve(context.Background()); err != nil {
		log.Error("serving failed", "err", err)
	}
	_ = server.Detach()
}

// A server passes its mount on to a successor, which may be another process. The successor answers
// the reads that the first server has not answered.
func ExampleAdopt() {
	log := slog.Default()
	first, err := fuse.Mount("/run/devices", log)
	if err != nil {
		log.Error("not mounted", "err", err)
		return
	}
	state := first.State()
	descriptors, err := first.Descriptors()
	if err != nil {
		log.Error("no descriptors", "err", err)
		return
	}
	_ = first.Detach() // only after Serve of the first server has returned

	second, err := fuse.Adopt(descriptors, "/run/devices", state, log)
	if err != nil {
		log.Error("connection not adopted", "err", err)
		return
	}
	_ = second.Resend() // before Serve, and after all devices were added
	_ = second.Serve(context.Background())
}
