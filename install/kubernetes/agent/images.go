package agent

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"lighter/node/report"
)

// ImagesAnnotation is an annotation of the node: how many images are lazy there, and why others are
// not.
const ImagesAnnotation = "lighter/images"

// Bounds of the annotation. A node's annotations have 256 KiB at most, all together.
const (
	maxNotLazy = 50  // images that are not lazy
	maxWhy     = 200 // bytes of each reason
)

// images returns the annotation for a state. The order of the images does not matter for it.
func images(s report.Status) string {
	lazy, others := 0, []string{}
	for _, image := range s.Images {
		if image.Lazy {
			lazy++
			continue
		}
		why := image.Why
		if len(why) > maxWhy {
			why = strings.ToValidUTF8(why[:maxWhy], "") + "…"
		}
		others = append(others, cmp.Or(image.Image, image.Chain)+": "+why)
	}
	slices.Sort(others)
	text := fmt.Sprintf("%d lazy, %d not", lazy, len(others))
	if more := len(others) - maxNotLazy; more > 0 {
		others = append(others[:maxNotLazy], fmt.Sprintf("%d more", more))
	}
	return strings.Join(append([]string{text}, others...), "; ")
}

// annotate sets the annotation, if it has changed; "" removes it.
func (a *Agent) annotate(ctx context.Context, images string) error {
	if a.annotated != nil && *a.annotated == images {
		return nil
	}
	value := &images
	if images == "" {
		value = nil
	}
	if err := a.API.Annotate(ctx, a.Node, map[string]*string{ImagesAnnotation: value}); err != nil {
		return err
	}
	a.annotated = &images
	return nil
}
