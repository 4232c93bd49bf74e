package wire

import (
	"strings"
	"time"

	"lighter/format/chunk"
)

const (
	// HeldLease is how long a holder counts as present after a report.
	HeldLease = 7 * 24 * time.Hour
	// HeldInterval is the longest time between two reports of a node to a hub that accepts them.
	HeldInterval = 6 * time.Hour
	// MaxHeld bounds the trees of one report, and MaxHeldBytes its body, in bytes.
	MaxHeld      = 16_384
	MaxHeldBytes = 2 << 20
	// MaxHolderID bounds Held.Holder, and MaxHolderName bounds Held.Name, in bytes.
	MaxHolderID, MaxHolderName = 64, 253
	// minHolderID is the minimal length of an ID, in bytes. A hub shows only the first half of an
	// ID.
	minHolderID = 16
)

// Kinds of holders.
const (
	HolderNode   = "node"
	HolderMirror = "mirror"
)

// Held is a report of all trees that a holder has. It replaces the holder's last report.
type Held struct {
	// Holder is the holder's ID: random letters and digits that the holder has chosen itself. A
	// client that knows the ID can replace the holder's report.
	Holder string     `json:"holder"`
	Kind   string     `json:"kind"`           // HolderNode, HolderMirror
	Name   string     `json:"name,omitempty"` // the name of its host, for users
	Trees  []chunk.ID `json:"trees"`          // at most MaxHeld
}

// Unknown is the answer to a report.
type Unknown struct {
	Trees []chunk.ID `json:"unknown"` // the reported trees that the hub does not have, or has no longer
}

// States of a holder.
const (
	HolderPresent = "present" // the holder has reported within its lease
	HolderOverdue = "overdue" // the lease has ended; the hub keeps the holder's trees until Holder.Until
)

// Holder is a node or a mirror that has reported what it has.
type Holder struct {
	ID      string    `json:"holder"` // the first half of its ID
	Kind    string    `json:"kind"`
	Name    string    `json:"name,omitempty"`
	Address string    `json:"address,omitempty"` // address or network of its last report; empty: the hub's machine
	Trees   int64     `json:"trees"`             // number of its trees that the hub has
	State   string    `json:"state"`             // HolderPresent, HolderOverdue
	Seen    time.Time `json:"seen"`              // time of its last report
	Until   time.Time `json:"until"`             // when the hub forgets it, if it does not report again
}

// ShortHolder returns the part of a holder's ID that is shown to users.
func ShortHolder(id string) string { return id[:len(id)/2] }

// IsHolderID reports whether text may be the ID of a holder.
func IsHolderID(text string) bool {
	isOther := func(r rune) bool { return !('0' <= r && r <= '9' || 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z') }
	return len(text) >= minHolderID && len(text) <= MaxHolderID && !strings.ContainsFunc(text, isOther)
}

// HeldPath is the path of a report of what a holder has.
func HeldPath(domain string) string { return below(domain, "held") }

// HoldersPath is the path of the holders.
func HoldersPath(domain string) string { return below(domain, "holders") }
