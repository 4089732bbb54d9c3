package replica

// NewOn is New with a listener that is no socket.
var NewOn = newReplica
