package directory

import (
	"fmt"
	"time"
)

// admit returns the image with a key, which it adds if needed. If there are too many images, or too
// many of the key's user, the one of these that was not used for the longest time is given up.
func (d *Directory) admit(k key) (*image, error) {
	for {
		i, full := d.room(k)
		switch {
		case i != nil:
			return i, nil
		case full == nil:
			return d.add(k)
		}
		if !d.makeRoom(full) {
			return nil, full
		}
	}
}

// room returns the image with a key, or what keeps it from being added.
func (d *Directory) room(k key) (*image, *fullError) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if i := d.images[k]; i != nil {
		i.used, i.moved = time.Now(), false
		return i, nil
	}
	if user := userOf(k); user != "" {
		n := 0
		for other := range d.images {
			if userOf(other) == user {
				n++
			}
		}
		if n >= maxMapped {
			return nil, &fullError{n, user}
		}
	}
	if len(d.images) >= maxImages {
		return nil, &fullError{images: len(d.images)}
	}
	return nil, nil
}

// fullError says that a directory has as many images as it can have.
type fullError struct {
	images int
	user   string // whose images these are; empty: all users'
}

func (e *fullError) Error() string {
	if e.user != "" {
		return fmt.Sprintf("the directory has %d images in user namespaces of user %s that are all in use",
			e.images, e.user)
	}
	return fmt.Sprintf("the directory has %d images that are all in use", e.images)
}

// makeRoom gives up one image that nobody uses, of the images that full counts.
func (d *Directory) makeRoom(full *fullError) bool {
	for _, i := range d.unusedFor(minUnused) {
		if full.user != "" && userOf(i.key) != full.user {
			continue
		}
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
