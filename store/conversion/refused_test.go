package conversion_test

import (
	"context"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"

	ggcr "github.com/google/go-containerregistry/pkg/registry"

	"lighter/format/soci"
	"lighter/format/trace"
	"lighter/store/conversion"
	"lighter/store/registry"
	tars "lighter/test/testkit/tarball"
)

// damage changes a byte of a blob of a layout: that at an offset, or, if it is 0, in the middle.
func damage(t *testing.T, dir string, digest v1.Hash, at int) {
	t.Helper()
	path := filepath.Join(dir, "blobs", digest.Algorithm, digest.Hex)
	b, err := os.ReadFile(path)
	if err == nil {
		if at == 0 {
			at = len(b) / 2
		}
		b[at] ^= 1
		err = os.WriteFile(path, b, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// What cannot be read, or not be expressed, is refused with an error that names it, and nothing is
// published under the destination's name.
func TestRefused(t *testing.T) {
	whole := func(t *testing.T) v1.Image { return imageOf(t, layers(), nil) }
	for want, source := range map[string]func(t *testing.T) string{
		"convert layer 2 (sha256:27563b40": func(t *testing.T) string { // damaged in the store
			dir, image := stored(t, whole(t)), whole(t)
			manifest, err := image.Manifest()
			if err != nil {
				t.Fatal(err)
			}
			damage(t, dir, manifest.Layers[1].Digest, 0)
			return dir
		},
		"with that of its name": func(t *testing.T) string { // gzip's header: the tar is the same
			dir, image := stored(t, whole(t)), whole(t)
			manifest, err := image.Manifest()
			if err != nil {
				t.Fatal(err)
			}
			damage(t, dir, manifest.Layers[0].Digest, 4)
			return dir
		},
		"its manifest": func(t *testing.T) string {
			dir := stored(t, whole(t))
			digest, err := whole(t).Digest()
			if err != nil {
				t.Fatal(err)
			}
			damage(t, dir, digest, 0)
			return dir
		},
		"its config": func(t *testing.T) string {
			dir := stored(t, whole(t))
			digest, err := whole(t).ConfigName()
			if err != nil {
				t.Fatal(err)
			}
			damage(t, dir, digest, 0)
			return dir
		},
		"the config names sha256:": func(t *testing.T) string {
			return stored(t, imageOf(t, layers(), func(c *v1.ConfigFile) {
				c.RootFS.DiffIDs[3] = c.RootFS.DiffIDs[0]
			}))
		},
		"it has 4 layers, and its config names 3": func(t *testing.T) string {
			return stored(t, imageOf(t, layers(), func(c *v1.ConfigFile) { c.RootFS.DiffIDs = c.RootFS.DiffIDs[1:] }))
		},
		`its media type is "application/vnd.oci.image.layer.v1.tar+gzip+encrypted"`: func(t *testing.T) string {
			image, err := mutate.Append(whole(t), mutate.Addendum{
				Layer: static.NewLayer([]byte("x"), "application/vnd.oci.image.layer.v1.tar+gzip+encrypted")})
			if err != nil {
				t.Fatal(err)
			}
			return stored(t, image)
		},
		`entry "usr/sparse": a sparse file has no place in a table`: func(t *testing.T) string {
			return stored(t, imageOf(t, append(layers(), tars.Of(tars.File("usr/sparse", "",
				tars.PAX("GNU.sparse.major", "1")))), nil))
		},
	} {
		t.Run(want, func(t *testing.T) {
			dir, o := t.TempDir(), conversion.Options{Format: conversion.EStargz, Dir: t.TempDir(), Jobs: 2}
			from := opened(t, "oci:"+source(t))
			_, err := convert(t.Context(), from, "linux/amd64", "oci:"+dir, o)
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("got %v, want an error with %q", err, want)
			}
			if _, err := os.Stat(filepath.Join(dir, "index.json")); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("an image was published: %v", err)
			}
			left := files(t, o.Dir)
			for _, path := range files(t, dir) {
				if strings.HasSuffix(path, ".new") {
					left = append(left, path)
				}
			}
			if left != nil {
				t.Errorf("temporary files were left: %v", left)
			}
		})
	}
}

// faulty runs a registry that fails requests of a method whose path has a part. It returns the
// registry's host.
func faulty(t *testing.T, method, part string) (host string, failed *int) {
	t.Helper()
	failed = new(int)
	next := ggcr.New(ggcr.Logger(log.New(io.Discard, "", 0)))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == method && strings.Contains(r.URL.Path, part) && part != "" {
			*failed++
			http.Error(w, `{"errors":[{"code":"DENIED","message":"the quota is used up"}]}`, http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://"), failed
}

// If a registry refuses a part, the command fails with its reason, and the name has no image.
func TestRegistryRefusesParts(t *testing.T) {
	from := opened(t, "oci:"+stored(t, imageOf(t, layers(), nil)))
	for method, part := range map[string]string{http.MethodPatch: "/uploads/", http.MethodPut: "/manifests/", "": ""} {
		host, failed := faulty(t, method, part)
		o := conversion.Options{Format: conversion.ZstdChunked, Dir: t.TempDir()}
		done, err := convert(t.Context(), from, "", "docker://"+host+"/tools/shell:1", o)
		source, findErr := registry.FindSource(t.Context(), host+"/tools/shell:1", false)
		if part == "" {
			if err != nil || findErr != nil {
				t.Fatalf("without faults: %v, %v", err, findErr)
			}
			images, err := source.Originals("")
			if err != nil || images[0].Digest != done.Digest || len(images[0].Layers) != len(layers()) {
				t.Errorf("got %+v, %v, want %s", images, err, done.Digest)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), "quota") || !strings.Contains(err.Error(), host) ||
			*failed == 0 {
			t.Errorf("%s %s: got %v, want the registry's reason", method, part, err)
		}
		if findErr == nil {
			t.Errorf("%s %s: the name has an image", method, part)
		}
		if left := files(t, o.Dir); left != nil {
			t.Errorf("temporary files were left: %v", left)
		}
	}
}

// A conversion ends with its context, whatever it does.
func TestCancelled(t *testing.T) {
	from := opened(t, "oci:"+stored(t, imageOf(t, layers(), nil)))
	for _, step := range []string{"read", "write"} {
		ctx, cancel := context.WithCancel(t.Context())
		seen := false
		o := conversion.Options{Format: conversion.EStargz, Jobs: 2, Dir: t.TempDir(),
			Report: func(now, _ string, _, _ int64) {
				if now == step {
					seen = true
					cancel()
				}
			}}
		_, err := convert(ctx, from, "", "oci:"+t.TempDir(), o)
		if !errors.Is(err, context.Canceled) || !seen {
			t.Errorf("%s: got %v, want that it was cancelled", step, err)
		}
	}
}

// A destination that is something else, or that another process writes, is refused before anything
// is read. What a killed process has left is overwritten.
func TestDestinations(t *testing.T) {
	full := t.TempDir()
	if err := os.WriteFile(filepath.Join(full, "precious"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]error{
		"oci:" + full: conversion.ErrNoDestination, "oci:": conversion.ErrNoDestination,
		"x":           conversion.ErrNoDestination,
		"docker://A:": registry.ErrNoImage,
		"docker://h.example.org/a@sha256:" + strings.Repeat("0", 64): registry.ErrNoImage,
	} {
		if _, err := conversion.Open(t.Context(), name, false); !errors.Is(err, want) {
			t.Errorf("%s: got %v, want %v", name, err, want)
		}
	}
	dir := t.TempDir()
	to, err := conversion.Open(t.Context(), "oci:"+dir, false)
	if err != nil {
		t.Fatal(err)
	}
	_, err = conversion.Open(t.Context(), "oci:"+dir, false)
	if err == nil || !strings.Contains(err.Error(), "another process") {
		t.Errorf("a layout that is open: got %v, want an error", err)
	}
	if err := to.Close(); err != nil {
		t.Fatal(err)
	}
	left := filepath.Join(dir, "blobs", "sha256", "layer.new")
	if err := os.WriteFile(left, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	from := opened(t, "oci:"+stored(t, imageOf(t, layers(), nil)))
	_, image := converted(t, from, dir, "", conversion.Options{Format: conversion.EStargz})
	if all, err := image.Layers(); err != nil || len(tarOf(t, all[0])) == 0 {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(left); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s: got %v, want that it is gone", left, err)
	}
}

// Options that no format has are refused.
func TestOptions(t *testing.T) {
	for _, o := range []conversion.Options{{}, {Format: "x"}, {Format: conversion.SOCI, Level: 1},
		{Format: conversion.EStargz, Level: 10}, {Format: conversion.ZstdChunked, Level: 23},
		{Format: conversion.EStargz, Level: -1}} {
		if err := o.Check(); err == nil {
			t.Errorf("%+v: got no error", o)
		}
	}
	list := filepath.Join(t.TempDir(), "list")
	for text, want := range map[string]string{"/a\n\nb c\n#d": "/a b c #d", strings.Repeat("x", 5000): ""} {
		if err := os.WriteFile(list, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		parts, err := conversion.ReadPaths(list)
		var got []string
		for _, p := range parts {
			got = append(got, p.Path)
		}
		if strings.Join(got, " ") != want || (err == nil) != (want != "") {
			t.Errorf("got %q, %v, want %q", got, err, want)
		}
	}
}

// A registry that takes no upload is refused before anything is converted.
func TestRegistryRefusesPushes(t *testing.T) {
	host, failed := faulty(t, http.MethodPost, "/uploads/")
	to, err := conversion.Open(t.Context(), "docker://"+host+"/tools/shell:1", false)
	if err == nil || !strings.Contains(err.Error(), "quota") || !strings.Contains(err.Error(), host) || *failed == 0 {
		t.Errorf("got %v, %v, want the registry's reason", to, err)
	}
}

// The recordings of the most starts come first, each in the order of its reads.
func TestPartsOf(t *testing.T) {
	one := trace.Recording{Starts: 1, Entries: []trace.Entry{{Path: "/one", Length: 5}}}
	two := trace.Recording{Starts: 2, Entries: []trace.Entry{{Path: "/b", Offset: 1, Length: 2},
		{Path: "/a", Length: 3}}}
	want := []soci.Part{{Path: "/b", Offset: 1, Length: 2}, {Path: "/a", Length: 3}, {Path: "/one", Length: 5}}
	if got := conversion.PartsOf([]trace.Recording{one, two}); !slices.Equal(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
