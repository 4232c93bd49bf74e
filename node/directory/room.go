package directory

import (
	"fmt"
	"time"
)

// admit returns the image with a key, which it adds if needed. If there are too many images, the
// one that was not used for the longest time is given up.
func (d *Directory) admit(k key) (*image, error) {
	for {
		d.mu.Lock()
		i, full := d.images[k], len(d.images) >= maxImages
		if i != nil {
			i.used, i.moved = time.Now(), false
		}
		d.mu.Unlock()
		switch {
		case i != nil:
			return i, nil
		case !full:
			return d.add(k)
		}
		if !d.makeRoom() {
			return nil, fmt.Errorf("the directory has %d images that are all in use", maxImages)
		}
	}
}

// makeRoom gives up one image that nobody uses.
func (d *Directory) makeRoom() bool {
	for _, i := range d.unusedFor(minUnused) {
		if i.work.TryLock() { // else it is being mounted or unmounted
			unused, err := d.unmount(i)
			left := err == nil && d.leave(i, unused)
			i.work.Unlock()
			if left {
				return true
			}
		}
	}
	return false
}
