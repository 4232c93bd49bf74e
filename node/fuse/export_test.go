package fuse

import "time"

const ReasonLate = reasonLate

func (s *Server) SetDeadline(d time.Duration) { s.deadline = d }
