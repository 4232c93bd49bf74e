package hubs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"

	"golang.org/x/sync/errgroup"

	"lighter/bench"
)

// The measured image consists of packages. Each version replaces some packages of the previous
// version. Half of the versions are removed and collected.
const (
	versions     = 12
	packages     = 24        // of each version
	packageFiles = 8         // of each package
	replaced     = 12        // packages that a version replaces
	packageFile  = 768 << 10 // bytes of a file

	deadBack = 0.95 // target: bytes that a collection frees : bytes that only removed versions need
)

// Settings of hubs that collect only on request, and then remove without delay what no image needs.
// With keepNothing a hub also deletes rewritten packs at once; otherwise the packs stay for nodes.
const (
	onRequest   = "[gc]\nevery_minutes = 0\ndelay_minutes = 0\n"
	keepNothing = "keep_minutes = 0\n"
)

func versionName(n int) string { return fmt.Sprintf("versions:%d", n) }

// layouts makes the OCI layouts of all versions, once.
func (r *run) layouts() (dirs []string, err error) {
	for v := range versions {
		dirs = append(dirs, filepath.Join(r.dir, "versions", fmt.Sprint(v)))
	}
	if r.hasLayouts {
		return dirs, nil
	}
	random := rand.New(rand.NewPCG(1, 2))
	now, next := seeds(1, packages*packageFiles), uint64(packages*packageFiles)
	var group errgroup.Group
	group.SetLimit(2)
	for _, dir := range dirs {
		content := slices.Clone(now)
		group.Go(func() error {
			m, err := makeLayout(dir)
			if err != nil {
				return err
			}
			return errors.Join(m.add(files(packageFile, content...)), m.write())
		})
		for _, p := range random.Perm(packages)[:replaced] {
			for i := range packageFiles {
				next++
				now[p*packageFiles+i] = next
			}
		}
	}
	r.hasLayouts = true
	return dirs, group.Wait()
}

// pushVersions starts a hub and pushes the versions first, first + step, and so on.
func (r *run) pushVersions(ctx context.Context, first, step int) (p *process, err error) {
	dirs, err := r.layouts()
	if err != nil {
		return nil, err
	}
	if p, err = r.startAt(ctx, r.Lighter, r.nextRoot(), store{}, onRequest); err != nil {
		return nil, err
	}
	for v := first; v < versions && err == nil; v += step {
		if err = p.push(ctx, dirs[v], versionName(v)); err == nil {
			err = p.ready(ctx, versionName(v))
		}
	}
	if err == nil {
		err = p.settled(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, p.stop())
	}
	return p, nil
}

// withGarbage starts a hub with all versions, and removes half of the versions. The first call
// makes the hub by pushes, and backs it up; later calls restore this backup. settings are further
// lines of the hub's configuration.
func (r *run) withGarbage(ctx context.Context, settings string) (p *process, err error) {
	backup := filepath.Join(r.dir, "backup")
	if !r.hasBackup {
		first, err := r.pushVersions(ctx, 0, 1)
		if err != nil {
			return nil, err
		}
		err = r.lighter(ctx, "backup", "--root", first.root, backup)
		if err := errors.Join(err, first.stop()); err != nil {
			return nil, err
		}
		r.hasBackup = true
	}
	root := r.nextRoot()
	if err := r.lighter(ctx, "restore", "--root", root, backup); err != nil {
		return nil, err
	}
	if p, err = r.startAt(ctx, r.Lighter, root, store{}, onRequest+settings); err != nil {
		return nil, err
	}
	for v := 0; v < versions && err == nil; v += 2 {
		err = p.Remove(ctx, versionName(v))
	}
	if err == nil {
		err = p.settled(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, p.stop())
	}
	return p, nil
}

// lighter runs the measured program.
func (r *run) lighter(ctx context.Context, args ...string) error {
	if out, err := exec.CommandContext(ctx, r.Lighter, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("lighter %s: %w: %s", args[0], err, bytes.TrimSpace(out))
	}
	return nil
}

// dead measures which share of the bytes that only removed images need is freed by a collection. It
// compares the hub with a hub that never had the removed images.
func (r *run) dead(ctx context.Context) (err error) {
	p, err := r.withGarbage(ctx, keepNothing)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.stop()) }()
	before, err := used(filepath.Join(p.root, "objects"))
	if err != nil {
		return err
	}
	took, err := seconds(func() error { _, err := p.collect(ctx); return err })
	if err != nil {
		return err
	}
	after, err := used(filepath.Join(p.root, "objects"))
	if err != nil {
		return err
	}
	other, err := r.pushVersions(ctx, 1, 2)
	if err != nil {
		return err
	}
	least, err := used(filepath.Join(other.root, "objects"))
	r.hasLayouts = false // other figures use the backup
	if err := errors.Join(err, other.stop(), os.RemoveAll(filepath.Join(r.dir, "versions"))); err != nil {
		return err
	}
	bench.Say("%s before the collection, %s after it (%s), %s in a hub that never had the removed images",
		bench.Size(before), bench.Size(after), bench.Seconds(took), bench.Size(least))
	r.add(Result{Figure: "dead", What: "bytes that the collection freed : bytes that only removed images need",
		Unit: "ratio", Value: float64(before-after) / float64(before-least),
		All: []float64{float64(before - after)}, Base: []float64{float64(before - least)}}, -deadBack)
	return nil
}
