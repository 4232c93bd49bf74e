package binds

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/containerd/platforms"

	"lighter/wire"
)

// namedImages is a Hub with images by name.
type namedImages map[string][]wire.Image

func (n namedImages) Images(_ context.Context, name string) ([]wire.Image, error) {
	return n[name], nil
}
func (namedImages) URL() string { return "http://hub.example" }

// find takes the image of this machine, and tries Docker Hub's name of a name without a host.
func TestFindImageToStart(t *testing.T) {
	here := platforms.Format(platforms.Normalize(platforms.DefaultSpec()))
	ready := func(name, platform string) wire.Image {
		return wire.Image{Name: name, Platform: platform, State: wire.StateReady, Chain: platform}
	}
	hub := namedImages{
		"one:1":                        {ready("one:1", here)},
		"docker.io/library/python:3":   {ready("docker.io/library/python:3", here)},
		"docker.io/library/two:latest": {ready("docker.io/library/two:latest", here)},
		"both:1":                       {ready("both:1", "linux/riscv64"), ready("both:1", here)},
		"foreign:1":                    {ready("foreign:1", "linux/riscv64")},
		"arm:1":                        {ready("arm:1", "linux/arm64")},
		"failed:1":                     {{Name: "failed:1", Platform: here, State: wire.StateFailed, Error: "why"}},
	}
	for name, want := range map[string]string{"one:1": "one:1", "python:3": "docker.io/library/python:3",
		"two": "docker.io/library/two:latest", "both:1": "both:1"} {
		if got, err := Find(t.Context(), hub, name, ""); err != nil || got.Name != want || got.Chain != here {
			t.Errorf("%s: got %s for %s, %v; want %s for %s", name, got.Name, got.Chain, err, want, here)
		}
	}
	if got, err := Find(t.Context(), hub, "foreign:1", "linux/riscv64"); err != nil || got.Name != "foreign:1" {
		t.Errorf("another platform that is requested: got %s, %v", got.Name, err)
	}
	if got, err := Find(t.Context(), hub, "arm:1", "linux/arm64/v8"); err != nil || got.Name != "arm:1" {
		t.Errorf("a variant that is requested: got %s, %v", got.Name, err)
	}
	for name, want := range map[string]string{"foreign:1": "for linux/riscv64", "failed:1": "failed there: why"} {
		if _, err := Find(t.Context(), hub, name, ""); err == nil || errors.Is(err, ErrNoImage) ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want another error than %v, with %q", name, err, ErrNoImage, want)
		}
	}
	for _, name := range []string{"none:1", "host.example/python:3"} {
		if _, err := Find(t.Context(), hub, name, ""); !errors.Is(err, ErrNoImage) {
			t.Errorf("%s: got %v, want %v", name, err, ErrNoImage)
		}
	}
}

// An image is mounted for any platform if it has no other, and for one that fits the requested
// platform.
func TestFindImageToMount(t *testing.T) {
	image := func(platform, state string) wire.Image {
		return wire.Image{Platform: platform, State: state, Chain: platform}
	}
	arm, amd := image("linux/arm64", wire.StateReady), image("linux/amd64", wire.StateReady)
	failed := image("linux/s390x", wire.StateFailed)
	b := &Binds{hub: namedImages{"both:1": {arm, amd, failed}, "arm:1": {arm, failed}}}
	for _, c := range []struct{ name, platform, want, wrong string }{
		{"arm:1", "", arm.Chain, ""}, {"both:1", "linux/amd64", amd.Chain, ""},
		{"both:1", "linux/arm64/v8", arm.Chain, ""}, {"both:1", "", "", "--platform"},
		{"arm:1", "linux/amd64", "", "is not for linux/amd64, but for linux/arm64"},
		{"arm:1", "linux/s390x", "", "it is failed there"}, {"none:1", "linux/amd64", "", "no image"},
		{"arm:1", "a/b/c/d", "", "a/b/c/d"},
	} {
		got, err := b.findImage(t.Context(), c.name, c.platform)
		if got.Chain != c.want || (err == nil) != (c.wrong == "") ||
			err != nil && !strings.Contains(err.Error(), c.wrong) {
			t.Errorf("%s for %q: got %q, %v; want %q, or an error with %q", c.name, c.platform, got.Chain, err, c.want,
				c.wrong)
		}
	}
}
