package directory

import (
	"fmt"
	"time"
)

// admit returns the image with a key, which it adds if needed. It takes a place, and counts for a
// user until nobody uses its tree; user 0 has no bound. If there are too many images, or too many
// of the user, the one of these that was not used for the longest time is given up.
func (d *Directory) admit(k key, user uint32) (*image, error) {
	for {
		i, full := d.room(k, user)
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

// room returns the image with a key, or what keeps it from being added. If it is nil, it has a
// place: add has to be called.
func (d *Directory) room(k key, user uint32) (*image, *fullError) {
	d.mu.Lock()
	defer d.mu.Unlock()
	i := d.images[k]
	if full, _ := d.share(k, user); full != nil {
		return nil, full
	}
	if n := d.places(); n >= maxImages && (i == nil || i.shared) {
		return nil, &fullError{images: n}
	}
	if i == nil {
		d.added[k] = user
		return nil, nil
	}
	i.used, i.moved, i.shared = time.Now(), false, false
	if i.user == 0 {
		i.user = user
	}
	return i, nil
}

// places returns how many images take a place. d.mu is held.
func (d *Directory) places() int {
	n := len(d.added)
	for _, i := range d.images {
		if !i.shared {
			n++
		}
	}
	return n
}

// share returns an error if so many images count for a user that one more cannot, and whether all
// of them were used lately, so that none can be given up for it. d.mu is held.
func (d *Directory) share(k key, user uint32) (full *fullError, final bool) {
	if i := d.images[k]; user == 0 || i != nil && i.user != 0 {
		return nil, false
	}
	n := 0
	for other, by := range d.added {
		if other != k && by == user {
			n++
		}
	}
	final = true
	for other, i := range d.images {
		if other != k && i.countsFor(user) {
			n++
			final = final && time.Since(i.used) < minUnused
		}
	}
	if n < maxShare {
		return nil, false
	}
	return &fullError{n, user}, final
}

// countsFor reports whether an image counts for a user: its tree may be in use, or is of use to
// nobody else. Directory.mu is held.
func (i *image) countsFor(user uint32) bool { return i.user == user || userOf(i.key) == user }

// fullError says that a directory has as many images as it can have.
type fullError struct {
	images int
	user   uint32 // whose images these are; 0: all users'
}

func (e *fullError) Error() string {
	if e.user != 0 {
		return fmt.Sprintf("user %d has %d images of the directory in use, and may have no more", e.user, e.images)
	}
	return fmt.Sprintf("the directory has %d images that are all in use", e.images)
}

// overfull returns an error if more images take a place than there are places: a container runtime
// has given up the trees of some.
func (d *Directory) overfull() *fullError {
	d.mu.Lock()
	defer d.mu.Unlock()
	if n := d.places(); n > maxImages {
		return &fullError{images: n}
	}
	return nil
}

// makeRoom takes the place of one image that nobody uses, of the images that full counts.
func (d *Directory) makeRoom(full *fullError) bool {
	for _, i := range d.unusedFor(minUnused) {
		if !d.isCounted(i, full) {
			continue
		}
		if i.work.TryLock() { // else it is being mounted or unmounted
			unused, err := d.unmount(i)
			left := err == nil && (full.user != 0 && !d.isCounted(i, full) || d.leave(i, unused))
			i.work.Unlock()
			if left {
				return true
			}
		}
	}
	return false
}

// isCounted reports whether an image is one of those that an error counts.
func (d *Directory) isCounted(i *image, full *fullError) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if full.user != 0 {
		return i.countsFor(full.user)
	}
	return !i.shared
}
