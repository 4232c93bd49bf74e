// Package platform finds, among the images of one name, those that fit a platform, as containerd
// does: an image for linux/arm64 fits linux/arm64/v8, and one for linux/arm/v6 fits linux/arm/v7.
// It does not say what a user wants if several images fit, or none.
package platform

import (
	"fmt"
	"slices"

	"github.com/containerd/platforms"

	"lighter/wire"
)

// Fitting returns the images that fit a platform, the best first. platform is OS/ARCH[/VARIANT], or
// empty for this machine. An image without a valid platform fits none.
func Fitting(images []wire.Image, platform string) ([]wire.Image, error) {
	matcher := platforms.Default()
	if platform != "" {
		wanted, err := platforms.Parse(platform)
		if err != nil {
			return nil, fmt.Errorf("platform %q: %w", platform, err)
		}
		matcher = platforms.Only(wanted)
	}
	type candidate struct {
		image    wire.Image
		platform platforms.Platform
	}
	var fit []candidate
	for _, image := range images {
		if p, err := platforms.Parse(image.Platform); err == nil && matcher.Match(p) {
			fit = append(fit, candidate{image, p})
		}
	}
	slices.SortStableFunc(fit, func(a, b candidate) int {
		switch {
		case matcher.Less(a.platform, b.platform):
			return -1
		case matcher.Less(b.platform, a.platform):
			return 1
		}
		return 0
	})
	var found []wire.Image
	for _, c := range fit {
		found = append(found, c.image)
	}
	return found, nil
}
