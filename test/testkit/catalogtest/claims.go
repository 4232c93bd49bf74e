package catalogtest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"lighter/hub/catalog"
)

// An object is claimed by one publication at a time. When the lease of the claim has ended, another
// publication can claim the object.
func testObjectClaims(t *testing.T, c *catalog.Catalog) {
	ctx := t.Context()
	one := catalog.Claim{Owner: "p1/a", Keys: []string{"packs/1", "packs/2"}}
	two := catalog.Claim{Owner: "p2/a", Keys: []string{"packs/2", "packs/3"}}
	three := catalog.Claim{Owner: "p1/b", Keys: []string{"packs/3"}}
	must(t, c.Claims.Acquire(ctx, one, long))
	if err := c.Claims.Acquire(ctx, two, long); !errors.Is(err, catalog.ErrClaimed) {
		t.Errorf("claimed an object twice: %v, want ErrClaimed", err)
	}
	must(t, c.Claims.Acquire(ctx, three, long)) // the refused claim two has claimed no object
	must(t, c.Claims.Extend(ctx, one, -time.Second))
	must(t, c.Claims.Release(ctx, three))
	must(t, c.Claims.Acquire(ctx, two, long))
	if err := c.Claims.Extend(ctx, one, long); !errors.Is(err, catalog.ErrLost) {
		t.Errorf("extended a claim of which a part is lost: %v, want ErrLost", err)
	}
	image, j := begin(t, c, "a")
	p := publication(t, c, image, "x")
	p.Lease, p.Claim = j.Lease(), one
	if err := c.Publish(ctx, p); !errors.Is(err, catalog.ErrLost) {
		t.Errorf("published without a claim: %v, want ErrLost", err)
	}
	found, err := c.Claims.Expired(ctx, "p3/a", "", long, 10)
	if err != nil || found.Owner != "p3/a" || len(found.Keys) != 1 || found.Keys[0] != "packs/1" {
		t.Errorf("expired claims %+v, %v, want that of packs/1", found, err)
	}
	if found, err = c.Claims.Expired(ctx, "p3/b", "p2/", long, 1); err != nil || len(found.Keys) != 1 {
		t.Errorf("claims of an ended process %+v, %v, want one", found, err)
	}
	must(t, c.Claims.Release(ctx, found))
	if found, err = c.Claims.Expired(ctx, "p3/c", "p2/", long, 10); err != nil || len(found.Keys) != 1 {
		t.Errorf("claims of an ended process %+v, %v, want the other one", found, err)
	}
}

// A transaction whose context ends was either committed, and reports no error, or changes nothing.
// The test uses claims: a claim that was committed in spite of an error would block later claims
// until its lease ends.
func testInterrupted(t *testing.T, c *catalog.Catalog) {
	const lease, longest = time.Hour, 20 * time.Millisecond
	interrupted := 0
	for n := range 300 {
		ctx, cancel := context.WithTimeout(t.Context(), longest*time.Duration(n)/300)
		claim := catalog.Claim{Owner: fmt.Sprintf("interrupted/%d", n), Keys: []string{"packs/interrupted"}}
		err := c.Claims.Acquire(ctx, claim, lease)
		cancel()
		if err != nil {
			interrupted++
			claim.Owner = fmt.Sprintf("next/%d", n)
			must(t, c.Claims.Acquire(t.Context(), claim, lease))
		}
		must(t, c.Claims.Release(t.Context(), claim))
	}
	if interrupted == 0 {
		t.Error("no transaction was interrupted")
	}
}
