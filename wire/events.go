package wire

import (
	"net/url"
	"strings"
	"time"
)

// EventRemoved is the kind of the event that an image was removed. The kinds of other events are
// the images' new states: StateReady, …
const EventRemoved = "removed"

// EventWait is the kind of a line of a watch that says nothing new: the connection is kept open.
const EventWait = "wait"

// Event is a change of an image's state, or its removal. Targets get events of the kinds ready,
// failed and removed, as the data of a CloudEvent.
type Event struct {
	ID       string `json:"id,omitempty"` // unique, random; empty: the image's state before the first change
	Kind     string `json:"kind"`         // StateReady, …, EventRemoved
	Domain   string `json:"domain"`
	Name     string `json:"name"`
	Digest   string `json:"digest"` // of the manifest
	Root     string `json:"root"`   // digest of what the name refers to: the manifest, or an index with it
	Platform string `json:"platform,omitempty"`
	Error    string `json:"error,omitempty"` // why the image has failed

	At time.Time `json:"time"`
}

// Delivery is an event that a target of the hub's configuration is to get, or did not get.
type Delivery struct {
	Event
	Target   string    `json:"target"`
	Attempts int64     `json:"attempts"`
	Failure  string    `json:"failure,omitempty"` // of the last attempt
	Due      time.Time `json:"due,omitzero"`      // when the next attempt may be made
	Dead     time.Time `json:"dead,omitzero"`     // since when no attempt is made any more
}

// EventLog is what a hub knows of its events.
type EventLog struct {
	Events     []Event    `json:"events"`     // the latest first; none if dead deliveries were asked for
	Deliveries []Delivery `json:"deliveries"` // that are to be made or, if they were asked for, dead ones
}

// Retried says how many dead deliveries are made again.
type Retried struct {
	Deliveries int64 `json:"deliveries"`
}

// Headers of an event that is sent to a target.
const (
	// SignatureHeader has t=TIME,v1=HEX: HMAC-SHA256 of "TIME.BODY" with the target's secret. TIME
	// is in seconds since 1970, and BODY the bytes of the body.
	SignatureHeader = "Lighter-Signature"
	// EventIDHeader has the event's ID. It is the same in each attempt.
	EventIDHeader = "Lighter-Event-Id"
)

// Status is what a hub says about the images of a name.
type Status struct {
	Name   string        `json:"name"`
	State  string        `json:"state"` // StatusReady, …
	Images []ImageStatus `json:"images"`
}

// States of a name.
const (
	StatusReady   = "ready"   // all its images
	StatusWaiting = "waiting" // one of its images is not ready yet
	StatusFailed  = "failed"  // one of its images
	StatusStored  = "stored"  // none of its images is ingested
	StatusUnknown = "unknown" // the hub does not have the name
)

// ImageStatus is what a hub says about one image.
type ImageStatus struct {
	Digest   string    `json:"digest"`
	Platform string    `json:"platform,omitempty"`
	State    string    `json:"state"` // as of Image
	Since    time.Time `json:"since"`
	// Reason is why it has failed, without addresses and paths.
	Reason string `json:"reason,omitempty"`
	Bytes  int64  `json:"bytes,omitempty"` // done so far, of an image that is being ingested
	Total  int64  `json:"total,omitempty"` // 0: not known
	// Seconds is an estimate: until the image is ready. 0: not known.
	Seconds int64 `json:"seconds,omitempty"`
}

// EventsPath is the path of the events.
func EventsPath(domain string) string { return below(domain, "events") }

// StatusPath is the path of an image's status, as JSON.
func StatusPath(domain, name string) string { return below(domain, "status", escaped(name)+".json") }

// BadgePath is the path of an image's badge: its state as an SVG.
func BadgePath(domain, name string) string { return below(domain, "status", escaped(name)+".svg") }

// escaped escapes the parts of a name for a path.
func escaped(name string) string {
	parts := strings.Split(name, "/")
	for i := range parts {
		parts[i] = url.PathEscape(parts[i])
	}
	return strings.Join(parts, "/")
}
