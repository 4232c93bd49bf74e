package bundle

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/containerd/containerd/v2/pkg/archive"

	"lighter/bytesize"
	"lighter/store/registry"
	"lighter/wire"
)

// pull pulls all layers of the image, unpacks them, and returns the image's config.
func pull(ctx context.Context, p places, o Options) ([]byte, error) {
	why := "no hub has " + o.Image
	if o.Pull == PullAlways {
		why = "no hub is asked"
	}
	image, err := registry.Find(ctx, o.Image, o.Platform, o.PlainHTTP)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", why, err)
	}
	o.Notice(fmt.Sprintf("%s: pulling all of %s, %s", why, image.Name, bytesize.Size(image.Size).Rounded()))
	if err := os.Chmod(p.image(), 0o755); err != nil { // whatever the umask: all users of the image read it
		return nil, err
	}
	err = o.Watch(func(show func(wire.Progress)) error {
		return image.Layers(ctx, func(layer io.Reader) error {
			_, err := archive.Apply(ctx, p.image(), layer)
			return err
		}, func(done int64) {
			show(wire.Progress{Step: "pull", Item: image.Name, Bytes: done, Total: image.Size})
		})
	})
	if err != nil {
		return nil, err
	}
	return image.Config()
}
