package device

// Stats are a device's figures since it was made.
type Stats struct {
	Faults int64 `json:"faults"`
	Bytes  int64 `json:"bytes"`       // that faults asked for
	Missed int64 `json:"missedBytes"` // of these, bytes that were not on this machine
	// Received are the bytes that came for it (compressed), also ahead of readers, by
	// the URL of the hub or mirror that gave them. What came for another device first is
	// counted there.
	Received map[string]int64 `json:"receivedBytes"`
}

// Stats returns the figures.
func (d *Device) Stats() Stats {
	return Stats{Faults: d.faults.Load(), Bytes: d.bytes.Load(), Missed: d.missed.Load(), Received: d.chunks.Received()}
}
