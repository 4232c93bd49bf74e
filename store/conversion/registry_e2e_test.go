//go:build e2e

package conversion_test

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"lighter/format/chunk"
	"lighter/format/stargz"
	"lighter/store/conversion"
	"lighter/store/registry"
	"lighter/test/testkit/distribution"
)

// An index is read from a registry and written to it, and all its images show what they have shown.
// stargz-snapshotter's library reads the new layers, and finds that all chunks match their digests.
func TestFromRegistryToRegistry(t *testing.T) {
	host := distribution.Start(t)
	index := mutate.AppendManifests(empty.Index)
	for _, architecture := range []string{"amd64", "arm64"} {
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add:        imageOf(t, layers(), func(c *v1.ConfigFile) { c.Architecture = architecture }),
			Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: architecture}}})
	}
	if err := remote.WriteIndex(reference(t, host+"/tools/shell:1"), index); err != nil {
		t.Fatal(err)
	}
	for format := range formats {
		from, err := registry.FindSource(t.Context(), host+"/tools/shell:1", false)
		if err != nil {
			t.Fatal(err)
		}
		ref := fmt.Sprintf("%s/lazy/shell:%s", host, format)
		o := conversion.Options{Format: format, Jobs: 2, Prioritized: filesOf("usr/large"), Dir: t.TempDir()}
		done, err := convert(t.Context(), from, "all", "docker://"+ref, o)
		if err != nil || len(done.Images) != 2 {
			t.Fatalf("got %+v, %v, want two images", done, err)
		}
		got, err := remote.Index(reference(t, ref))
		if err != nil {
			t.Fatal(err)
		}
		if digest, err := got.Digest(); err != nil || digest.String() != done.Digest {
			t.Errorf("the name has %s, %v, want %s", digest, err, done.Digest)
		}
		for _, made := range done.Images {
			hash, err := v1.NewHash(made.Digest)
			if err != nil {
				t.Fatal(err)
			}
			image, err := got.Image(hash)
			if err != nil {
				t.Fatal(err)
			}
			compareLayers(t, made, image, o)
		}
		readByStargz(t, got)
	}
}

// A registry takes the layers of an image in another of its repositories, so that they are not
// pushed.
func TestSOCIMountsLayers(t *testing.T) {
	host := distribution.Start(t)
	if err := remote.Write(reference(t, host+"/tools/shell:1"), large(t)); err != nil {
		t.Fatal(err)
	}
	from, err := registry.FindSource(t.Context(), host+"/tools/shell:1", false)
	if err != nil {
		t.Fatal(err)
	}
	o := conversion.Options{Format: conversion.SOCI, Dir: t.TempDir(), Report: func(step, layer string, _, _ int64) {
		if step == "push" {
			t.Errorf("layer %s was pushed", layer)
		}
	}}
	done, err := convert(t.Context(), from, "", "docker://"+host+"/lazy/shell:1", o)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := remote.Index(reference(t, host+"/lazy/shell@"+done.Digest)); err != nil {
		t.Error(err)
	}
	found, err := registry.FindSource(t.Context(), host+"/lazy/shell:1", false)
	if err != nil {
		t.Fatal(err)
	}
	if images, err := found.Originals(""); err != nil || images[0].Digest != done.Images[0].Digest {
		t.Errorf("got %+v, %v, want image %s", images, err, done.Images[0].Digest)
	}
}

// readByStargz reads the first layer of an index's first image with stargz-snapshotter's library.
func readByStargz(t *testing.T, index v1.ImageIndex) {
	t.Helper()
	dir := t.TempDir()
	if _, err := layout.Write(dir, index); err != nil {
		t.Fatal(err)
	}
	all, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	image, err := index.Image(all.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := image.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	layer := manifest.Layers[0]
	cmd := exec.Command("go", "run", "./tableverify", filepath.Join(dir, "blobs", "sha256", layer.Digest.Hex),
		layer.Annotations[stargz.TableDigest])
	cmd.Dir = "../../test/tools/storage"
	out, err := cmd.CombinedOutput()
	want := fmt.Sprintf("usr/large %s\n", chunk.Sum([]byte(strings.Repeat("0123456789abcdef", 320_000))))
	if err != nil || !strings.Contains(string(out), want) {
		t.Errorf("stargz-snapshotter's library: %v, read\n%s\nwithout %s", err, out, want)
	}
}
