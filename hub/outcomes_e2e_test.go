//go:build e2e

package hub_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/wire"
)

// has returns an error unless a name refers to this image only, and the image is ready.
func (p *process) has(ctx context.Context, name string, i fakeImage) error {
	manifest, _, _ := i.build()
	b, err := json.Marshal(manifest)
	if err != nil {
		return err
	}
	images, err := p.client.Images(ctx, name)
	if err == nil && (len(images) != 1 || images[0].State != wire.StateReady ||
		images[0].Digest != digest.FromBytes(b).String()) {
		err = fmt.Errorf("images %+v, want %s ready", images, digest.FromBytes(b))
	}
	return err
}

// hasOnly returns an error unless, of a round's names, the catalog and the registry have these and
// no others.
func (p *process) hasOnly(ctx context.Context, round int, names ...string) error {
	images, err := p.client.Images(ctx, "")
	if err != nil {
		return err
	}
	for n := range 3 {
		name := roundName(round, n)
		repository, tag, _ := strings.Cut(name, ":")
		want := slices.Contains(names, name)
		if slices.ContainsFunc(images, func(i wire.Image) bool { return i.Name == name }) != want {
			return fmt.Errorf("the hub has image %s: %t, want %t", name, !want, want)
		}
		status, _, _ := p.do(http.MethodHead, "/v2/"+repository+"/manifests/"+tag, nil, "Accept",
			v1.MediaTypeImageManifest)
		if (status == http.StatusOK) != want {
			return fmt.Errorf("the manifest of %s: %d, want 200: %t", name, status, want)
		}
	}
	return nil
}

// afterClaims calls check until it finds no problem, or all claims of objects have ended. An object
// that a stopped process was about to store or delete stays claimed until then. afterClaims returns
// the last problem, or the first error.
func afterClaims(check func() (problem, err error)) error {
	for end := time.Now().Add(2 * stepsClaimLease); ; time.Sleep(stepsClaimLease / 10) {
		problem, err := check()
		if err != nil || problem == nil || time.Now().After(end) {
			return errors.Join(err, problem)
		}
	}
}

// isRepaired returns an error if problems are left after all claims of objects have ended.
func (p *process) isRepaired(ctx context.Context) error {
	return afterClaims(func() (problem, err error) {
		last, err := p.client.Fsck(ctx, wire.Fsck{}, silent)
		if err == nil && last.Check.Left() != 0 {
			problem = fmt.Errorf("not repaired: %s", findings(*last.Check))
		}
		return problem, err
	})
}

// isComplete returns an error unless, after all claims of objects have ended, the bucket has the
// index of a round's image, and no longer the unknown object.
func (p *process) isComplete(ctx context.Context, round int, unknown string) error {
	images, err := p.client.Images(ctx, roundName(round, 1))
	if err != nil || len(images) != 1 {
		return errors.Join(err, fmt.Errorf("%s has %d images, want 1", roundName(round, 1), len(images)))
	}
	index := "indexes/" + images[0].Tree + ".zst"
	return afterClaims(func() (problem, err error) {
		all := files(p.t, objectsDir(p.config))
		if !slices.Contains(all, index) || slices.Contains(all, unknown) {
			problem = fmt.Errorf("the bucket has %q, want %s, and not %s", all, index, unknown)
		}
		return problem, nil
	})
}

// wantRecorded returns an error unless the hub has a workload and startup packs of the round's
// image.
func wantRecorded(ctx context.Context, h *process, round int) error {
	starts, err := h.client.Starts(ctx, roundName(round, 1), "")
	if err == nil && (len(starts) != 1 || len(starts[0].Workloads) != 1 || len(starts[0].Packs) == 0) {
		err = fmt.Errorf("starts %+v, want one workload with packs", starts)
	}
	return err
}
