wheel pack --dest-dir "$out" .
