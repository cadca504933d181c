"""Where the prototype keeps its frontend; here it is `parrot.compat`."""
