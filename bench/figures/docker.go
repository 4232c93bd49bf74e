package figures

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"lighter/bench"
	"lighter/test/testkit/dockerd"
	"lighter/test/testkit/site"
)

// docker pulls an image, and runs a container by Docker's API. dockerd keeps its images in
// containerd: without Lighter in the snapshotter overlayfs, as a new installation of Docker 29
// does.
type docker struct {
	*run
	engine *dockerd.Engine
}

func (*docker) name() string { return "Docker" }

func (d *docker) prepare(ctx context.Context, mode string) error {
	if err := d.Site.Machine.Wipe(ctx); err != nil {
		return err
	}
	engine, err := dockerd.New(d.Site, d.dir(), dockerd.Configuration(mode))
	if err != nil {
		return err
	}
	if err := engine.Start(ctx); err != nil {
		return err
	}
	d.engine = engine
	return nil
}

func (d *docker) start(ctx context.Context, _ string, w bench.Workload) error {
	ref := site.Reference(w.Image)
	if err := d.engine.Pull(ctx, ref); err != nil {
		return err
	}
	return printed(d.engine.Run(ctx, ref, w.Argv...))
}

func (d *docker) end(ctx context.Context, _ bool) error {
	if d.engine == nil {
		return nil
	}
	err := d.engine.Stop(ctx)
	d.engine = nil
	return errors.Join(err, os.RemoveAll(d.dir()))
}

func (d *docker) dir() string { return filepath.Join(d.Site.Dir, "docker") }
