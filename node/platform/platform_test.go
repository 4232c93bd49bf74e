package platform

import (
	"slices"
	"testing"

	"github.com/containerd/platforms"

	"lighter/wire"
)

// Variants of a platform fit as in containerd, the best first.
func TestFitting(t *testing.T) {
	here := platforms.DefaultString()
	var images []wire.Image
	for _, p := range []string{"", "linux/arm/v6", "linux/amd64", "linux/arm/v7", "linux/arm64", "linux/s390x", "/",
		here} {
		images = append(images, wire.Image{Platform: p})
	}
	for platform, want := range map[string][]string{
		"linux/arm64/v8": {"linux/arm64", "linux/arm/v7", "linux/arm/v6"},
		"linux/arm/v7":   {"linux/arm/v7", "linux/arm/v6"},
		"linux/arm/v6":   {"linux/arm/v6"},
		"linux/s390x":    {"linux/s390x"},
		"linux/riscv64":  nil,
	} {
		found, err := Fitting(images, platform)
		var got []string
		for _, image := range found {
			got = append(got, image.Platform)
		}
		// This machine's platform is in the list twice, or a variant of one in the list.
		if got = slices.Compact(got); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: got %q, %v; want %q", platform, got, err, want)
		}
	}
	if found, err := Fitting(images, ""); err != nil || len(found) == 0 || found[0].Platform != here &&
		platforms.Format(platforms.Normalize(platforms.DefaultSpec())) != found[0].Platform {
		t.Errorf("this machine: got %+v, %v; want one for %s first", found, err, here)
	}
	if _, err := Fitting(images, "linux/arm64/v8/more"); err == nil {
		t.Error("a wrong platform: want an error")
	}
}
